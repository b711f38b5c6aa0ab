"""What ``farpool doctor`` looks at whatever the transport: the release, the kernel, memory and limits."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from farpool.cli.findings import Finding, Subject
from farpool.protocol.units import format_bytes

__all__ = ["descriptors", "farpool", "huge_pages", "kernel", "native", "shared_memory", "userfaultfd"]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
DEFAULT_CAPACITY = 1 << 30
"""What ``farpool serve`` wants to have free below /dev/shm when nobody says otherwise."""
ENOUGH_DESCRIPTORS = 4096
"""One a session for control and one for tcp data; attached slabs keep none."""
OLDEST_KERNEL = (5, 4)
"""pidfd_open(2) came with 5.3; 5.4 is the oldest kernel with long support that has it."""
USERFAULTFD_NUMBERS = {"x86_64": 323, "aarch64": 282}
"""System call numbers of userfaultfd(2), from the kernel's unistd.h."""


def farpool(subject: Subject) -> Iterator[Finding]:
    """Name the release, and the Python below it."""
    python = platform.python_version()
    yield Finding("farpool", "ok", f"farpool {version('farpool')}, {platform.python_implementation()} {python}")


def native(subject: Subject) -> Iterator[Finding]:
    """Load the native code."""
    try:
        for module in ("mapping", "control_channel", "fork"):
            import_module(f"farpool.native.{module}")
    except ImportError as error:
        mend = f"{sys.executable} -m pip install --force-reinstall farpool"
        yield Finding("native code", "fail", f"it is not built: {error}", mend)
    else:
        yield Finding("native code", "ok", "built and loaded")


def kernel(subject: Subject) -> Iterator[Finding]:
    """Look at the kernel's release."""
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_KERNEL:
        wanted = ".".join(map(str, OLDEST_KERNEL))
        yield Finding("kernel", "fail", f"Linux {release} is older than {wanted}, the oldest that Farpool runs on")
    else:
        yield Finding("kernel", "ok", f"Linux {release}, {platform.machine()}")


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Look at the room for the default arena."""
    facts = os.statvfs(SHARED_MEMORY)
    size, free = facts.f_frsize * facts.f_blocks, facts.f_frsize * facts.f_bavail
    message = f"{SHARED_MEMORY} has {format_bytes(free)} free of {format_bytes(size)}"
    if free < DEFAULT_CAPACITY:
        message += f"; the default capacity is {format_bytes(DEFAULT_CAPACITY)}"
        yield Finding("shared memory", "warn", message, f"mount -o remount,size=4G {SHARED_MEMORY}")
    else:
        yield Finding("shared memory", "ok", message)


def descriptors(subject: Subject) -> Iterator[Finding]:
    """Look at the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    message = f"this shell may open {soft} files (at most {hard})"
    if soft < ENOUGH_DESCRIPTORS:
        wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
        yield Finding("descriptors", "warn", f"{message}; a busy server needs more", f"ulimit -n {wanted}")
    else:
        yield Finding("descriptors", "ok", message)


def huge_pages(subject: Subject) -> Iterator[Finding]:
    """Look at the huge pages that are reserved."""
    facts = dict(line.split(":", 1) for line in (subject.proc_root / "meminfo").read_text().splitlines())
    total, page = int(facts.get("HugePages_Total", "0")), facts.get("Hugepagesize", "").strip()
    if total:
        yield Finding("huge pages", "ok", f"{total} of {page} reserved")
    else:
        yield Finding("huge pages", "ok", "none reserved; slabs use small pages")


def userfaultfd(subject: Subject) -> Iterator[Finding]:
    """Ask the kernel for a userfaultfd."""
    number = USERFAULTFD_NUMBERS.get(platform.machine())
    if number is None:
        yield Finding("userfaultfd", "warn", f"not known how to ask for it on {platform.machine()}")
        return
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = library.syscall(number, os.O_CLOEXEC)
    if descriptor >= 0:
        os.close(descriptor)
        yield Finding("userfaultfd", "ok", "usable here")
        return
    reason = os.strerror(ctypes.get_errno())
    yield Finding("userfaultfd", "warn", f"refused ({reason})", "sysctl vm.unprivileged_userfaultfd=1")
