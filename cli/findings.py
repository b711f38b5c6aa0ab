"""What ``farpool doctor`` looks at: one function a check, in the order in which they are printed.

A check looks and changes nothing. ``fail`` means that Farpool cannot work as asked, ``warn`` that something
will be slower or missing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import farpool
from farpool.protocol.errors import FarpoolError, ProtocolError, ServerLost, TransportUnavailable
from farpool.protocol.units import format_bytes
from farpool.transports.cxl.devices import Device, dax_names, open_device, problem_of
from farpool.transports.cxl.superblock import PAGE_BYTES, read_superblock
from farpool.transports.registry import transport_names

__all__ = ["CHECKS", "Finding", "Level", "Subject", "check", "examine"]

Level = Literal["ok", "warn", "fail"]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
DEFAULT_CAPACITY = 1 << 30
"""What ``farpool serve`` wants to have free below /dev/shm when nobody says otherwise."""
ENOUGH_DESCRIPTORS = 4096
"""One a session for control and one for tcp data; attached slabs keep none."""
ENOUGH_LOCKED = 64 << 20
"""Below this a registration of one ordinary slab fails (docs/operations.md)."""
OLDEST_KERNEL = (5, 4)
"""pidfd_open(2) came with 5.3; 5.4 is the oldest kernel with long support that has it."""
USERFAULTFD_NUMBERS = {"x86_64": 323, "aarch64": 282}
"""System call numbers of userfaultfd(2), from the kernel's unistd.h."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; ``mend`` is a command, or empty."""

    check: str
    level: Level
    message: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined: this machine, and the pool at ``url`` (the default address if None)."""

    url: str | None = None
    timeout: float = 2.0
    sys_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    modules_root: Path = Path("/lib/modules")


Check = Callable[[Subject], Iterator[Finding]]
CHECKS: dict[str, Check] = {}


def check(name: str) -> Callable[[Check], Check]:
    """Register a check under *name*."""

    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def examine(subject: Subject) -> Iterator[Finding]:
    """Run every check; one that breaks becomes a finding of its own."""
    for name, function in CHECKS.items():
        try:
            yield from function(subject)
        except (FarpoolError, OSError, ValueError) as error:
            yield Finding(name, "warn", f"could not be checked: {error}")


@check("farpool")
def _farpool(subject: Subject) -> Iterator[Finding]:
    python = platform.python_version()
    yield Finding("farpool", "ok", f"farpool {version('farpool')}, {platform.python_implementation()} {python}")


@check("native code")
def _native(subject: Subject) -> Iterator[Finding]:
    try:
        for module in ("mapping", "control_channel", "fork"):
            import_module(f"farpool.native.{module}")
    except ImportError as error:
        mend = f"{sys.executable} -m pip install --force-reinstall farpool"
        yield Finding("native code", "fail", f"it is not built: {error}", mend)
    else:
        yield Finding("native code", "ok", "built and loaded")


@check("kernel")
def _kernel(subject: Subject) -> Iterator[Finding]:
    release = platform.release()
    numbers = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_KERNEL:
        wanted = ".".join(map(str, OLDEST_KERNEL))
        yield Finding("kernel", "fail", f"Linux {release} is older than {wanted}, the oldest that Farpool runs on")
    else:
        yield Finding("kernel", "ok", f"Linux {release}, {platform.machine()}")


@check("shared memory")
def _shared_memory(subject: Subject) -> Iterator[Finding]:
    facts = os.statvfs(SHARED_MEMORY)
    size, free = facts.f_frsize * facts.f_blocks, facts.f_frsize * facts.f_bavail
    message = f"{SHARED_MEMORY} has {format_bytes(free)} free of {format_bytes(size)}"
    if free < DEFAULT_CAPACITY:
        message += f"; the default capacity is {format_bytes(DEFAULT_CAPACITY)}"
        yield Finding("shared memory", "warn", message, f"mount -o remount,size=4G {SHARED_MEMORY}")
    else:
        yield Finding("shared memory", "ok", message)


@check("descriptors")
def _descriptors(subject: Subject) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    message = f"this shell may open {soft} files (at most {hard})"
    if soft < ENOUGH_DESCRIPTORS:
        wanted = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
        yield Finding("descriptors", "warn", f"{message}; a busy server needs more", f"ulimit -n {wanted}")
    else:
        yield Finding("descriptors", "ok", message)


@check("huge pages")
def _huge_pages(subject: Subject) -> Iterator[Finding]:
    facts = dict(line.split(":", 1) for line in (subject.proc_root / "meminfo").read_text().splitlines())
    total, page = int(facts.get("HugePages_Total", "0")), facts.get("Hugepagesize", "").strip()
    if total:
        yield Finding("huge pages", "ok", f"{total} of {page} reserved")
    else:
        yield Finding("huge pages", "ok", "none reserved; slabs use small pages")


@check("userfaultfd")
def _userfaultfd(subject: Subject) -> Iterator[Finding]:
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


@check("cxl devices")
def _dax_devices(subject: Subject) -> Iterator[Finding]:
    names = dax_names(subject.sys_root)
    memories = [name for name in _entries(subject.sys_root / "bus/cxl/devices") if name.startswith("mem")]
    mend = f"cxl create-region -m {' '.join(memories)}" if memories else ""
    for name in names:
        yield _dax_device(name, subject)
    if not names:
        message = "no DAX device: the cxl transport works on this host's shared memory alone"
        yield Finding("cxl devices", "warn", message, mend)


def _dax_device(name: str, subject: Subject) -> Finding:
    problem = problem_of(name, subject.sys_root)
    if problem is None:
        try:
            device = open_device(f"/dev/{name}", writable=True, sys_root=subject.sys_root)
        except TransportUnavailable as error:
            problem = error.message
        else:
            return _dax_contents(name, device)
    cause, _, mend = problem.rpartition("; run: ")
    if not cause:
        cause, _, mend = problem.rpartition("; run as root: ")
    return Finding("cxl devices", "warn", cause or problem, mend if cause else "")


def _dax_contents(name: str, device: Device) -> Finding:
    """Say what an open device holds."""
    size = f"{name}: {format_bytes(device.nbytes)}, aligned to {format_bytes(device.align)}"
    try:
        if device.nbytes < 2 * device.align:
            mend = f"daxctl reconfigure-device --size={2 * device.align} {name}"
            return Finding("cxl devices", "warn", f"{size}: too small for an arena", mend)
        with device.map(0, PAGE_BYTES, writable=False) as header:
            found = read_superblock(header, incoherent=True)
    except (ProtocolError, TransportUnavailable) as error:
        return Finding("cxl devices", "warn", f"{size}: {error.message}", f"farpool format --yes {device.path}")
    finally:
        device.close()
    holds = "blank" if found is None or not found.claimed else f"carries the arena {found.arena.hex()}"
    return Finding("cxl devices", "ok", f"{size}, {holds}")


@check("rdma devices")
def _rdma_devices(subject: Subject) -> Iterator[Finding]:
    folder = subject.sys_root / "class/infiniband"
    names = _entries(folder)
    for name in names:
        for port in _entries(folder / name / "ports"):
            state = (folder / name / "ports" / port / "state").read_text().strip()
            level: Level = "ok" if "ACTIVE" in state else "warn"
            yield Finding("rdma devices", level, f"{name} port {port}: {state}")
    if not names:
        mend = _software_rdma(subject)
        message = "no RDMA device: the rdma transport is not available here"
        yield Finding("rdma devices", "warn", f"{message}; software can stand in" if mend else message, mend)


def _software_rdma(subject: Subject) -> str:
    """Return what makes a soft-RoCE device, ``""`` where the kernel has none or there is no interface for it."""
    modules = subject.modules_root / platform.release()
    lists = [modules / name for name in ("modules.dep", "modules.builtin")]
    if not any("rdma_rxe.ko" in path.read_text() for path in lists if path.is_file()):
        return ""
    wired = [name for name in _entries(subject.sys_root / "class/net") if name != "lo"]
    return f"modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {wired[0]}" if wired else ""


@check("rdma library")
def _rdma_library(subject: Subject) -> Iterator[Finding]:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        message = "libibverbs.so.1 is not installed"
        if not _has_rdma(subject):
            yield Finding("rdma library", "ok", f"{message}, and no device needs it")
            return
        mend = "apt-get install -y libibverbs1 ibverbs-providers" if shutil.which("apt-get") else ""
        yield Finding("rdma library", "warn", message, mend)
    else:
        yield Finding("rdma library", "ok", "libibverbs.so.1 loads")


@check("locked memory")
def _locked_memory(subject: Subject) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("locked memory", "ok", "unlimited")
    elif soft >= ENOUGH_LOCKED:
        yield Finding("locked memory", "ok", f"limit {format_bytes(soft)}")
    elif not _has_rdma(subject):
        yield Finding("locked memory", "ok", f"limit {format_bytes(soft)}, and no RDMA device needs more")
    else:
        message = f"limit {format_bytes(soft)}: too little to register slabs for rdma; the others need none"
        mend = "ulimit -l unlimited" if hard == resource.RLIM_INFINITY else ""
        message += "" if mend else "; raise it in /etc/security/limits.conf, LimitMEMLOCK for a service"
        yield Finding("locked memory", "warn", message, mend)


def _has_rdma(subject: Subject) -> bool:
    return bool(_entries(subject.sys_root / "class/infiniband"))


@check("server")
def _server(subject: Subject) -> Iterator[Finding]:
    try:
        with farpool.connect(subject.url, timeout=subject.timeout) as pool:
            stat = pool.stat()
            yield Finding("server", "ok", f"{stat.server} at {pool.url}, pid {stat.pid}, {stat.state}")
    except TransportUnavailable as error:
        yield Finding("server", "fail", error.message)
    except ServerLost as error:
        yield Finding("server", "warn" if subject.url is None else "fail", error.message, "farpool serve")
        return
    except FarpoolError as error:  # it is there: stopped, full or of another release
        yield Finding("server", "fail", error.message)
        return
    for name in transport_names():
        yield _transport(name, subject)


def _transport(name: str, subject: Subject) -> Finding:
    title = f"{name} transport"
    try:
        farpool.connect(subject.url, transport=name, timeout=subject.timeout).close()
    except TransportUnavailable as error:
        return Finding(title, "warn", error.message)
    return Finding(title, "ok", "usable from here")


def _entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
