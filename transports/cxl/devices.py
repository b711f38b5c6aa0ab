"""Memory devices as files: ``/dev/daxX.Y`` with what sysfs says of it, or one file on an fsdax mount.

Opening one is where the mistakes of a set-up show: each raises ``TransportUnavailable``, one line with the cause and
the command that mends it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import TransportUnavailable
from farpool.protocol.units import format_bytes

__all__ = ["FILE_ALIGN", "Device", "dax_names", "holder_of_lock", "open_device", "problem_of"]

FILE_ALIGN: Final = 2 << 20
"""Alignment of extents in a file: that of the huge pages an fsdax mount maps with."""

SYS_ROOT: Final = Path("/sys")
KMEM: Final = "kmem"
DEVICE_DAX: Final = "device_dax"


@dataclass(slots=True)
class Device:
    """One open device. ``close`` may be called twice."""

    path: str
    fd: int
    nbytes: int
    align: int
    """Mappings begin at a multiple of it and are as long."""
    identity: str
    """What tells it from every other device of this machine: its place in sysfs, or a file's device and inode."""
    kind: str
    """``devdax`` or ``file``."""

    def map(self, offset: int, nbytes: int, *, writable: bool) -> MemoryMapping:
        """Return a shared mapping of whole units of the alignment; raise ``TransportUnavailable``."""
        length = -(-nbytes // self.align) * self.align
        try:
            return MemoryMapping(self.fd, length, writable=writable, offset=offset)
        except OSError as error:
            mend = f"; run: daxctl list -D -d {Path(self.path).name}" if self.kind == "devdax" else ""
            raise TransportUnavailable(
                f"{format_bytes(length)} at {offset} of {self.path} cannot be mapped ({error.strerror}){mend}"
            ) from error

    def lock(self) -> None:
        """Take the device for this process alone, among Farpool's; raise ``TransportUnavailable``."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = holder_of_lock(self.fd)
            who, mend = (f"with pid {holder} ", f"kill {holder}") if holder else ("", f"fuser -v {self.path}")
            raise TransportUnavailable(
                f"{self.path} is busy: the farpool server {who}has it; stop that one; run: {mend}"
            ) from None

    def close(self) -> None:
        """Close the descriptor; mappings stay."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_device(path: str, *, writable: bool, sys_root: Path = SYS_ROOT) -> Device:
    """Open a DAX device or a regular file that stands for one; raise ``TransportUnavailable``."""
    try:
        status = os.stat(path)  # noqa: PTH116  beside os.open
    except FileNotFoundError:
        raise TransportUnavailable(_missing(path, sys_root)) from None
    except OSError as error:
        raise TransportUnavailable(f"{path} cannot be looked at: {error.strerror}") from None
    if stat.S_ISREG(status.st_mode):
        fd = _open(path, writable=writable)
        status = os.fstat(fd)
        nbytes = status.st_size // FILE_ALIGN * FILE_ALIGN
        identity = f"file {os.major(status.st_dev)}:{os.minor(status.st_dev)} {status.st_ino}"
        return Device(path, fd, nbytes, FILE_ALIGN, identity, "file")
    node = sys_root / "dev/char" / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    if not stat.S_ISCHR(status.st_mode) or (node / "subsystem").resolve().name != "dax":
        raise TransportUnavailable(f"{path} is neither a DAX device nor a file; run: daxctl list -D")
    node = node.resolve()
    if (problem := problem_of(node.name, sys_root)) is not None:
        raise TransportUnavailable(problem)
    nbytes, align = _number(node / "size"), _number(node / "align")
    return Device(path, _open(path, writable=writable), nbytes // align * align, align, _identity(node), "devdax")


def dax_names(sys_root: Path = SYS_ROOT) -> list[str]:
    """Return the names of this machine's DAX devices."""
    folder = sys_root / "bus/dax/devices"
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def problem_of(name: str, sys_root: Path = SYS_ROOT) -> str | None:
    """Return why the DAX device called *name* cannot be used as memory of ours, and what mends it; None if it can."""
    node = sys_root / "bus/dax/devices" / name
    driver = (node / "driver").resolve().name if (node / "driver").exists() else ""
    reconfigure = f"daxctl reconfigure-device --force --mode=devdax {name}"
    if driver == KMEM:
        return f"{name} is in system-ram mode: the kernel uses it as ordinary memory; run: {reconfigure}"
    if driver != DEVICE_DAX:
        what = f"the driver {driver}" if driver else "no driver"
        return f"{name} is bound to {what}, not to {DEVICE_DAX}; run: {reconfigure}"
    if not _number(node / "size"):
        return f"{name} has no memory; run: daxctl reconfigure-device --size=SIZE {name}"
    return None


def holder_of_lock(fd: int) -> int | None:
    """Return the process that holds the lock on a file, as ``/proc/locks`` tells it."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text("ascii").splitlines():
        words = line.split()
        if "FLOCK" in words and wanted in words:
            return int(words[words.index(wanted) - 1])
    return None


def candidates(path: str) -> Iterator[str]:
    """Yield where a device that another host calls *path* may be here: by that name first."""
    yield path
    for name in dax_names():
        if f"/dev/{name}" != path:
            yield f"/dev/{name}"


def _missing(path: str, sys_root: Path) -> str:
    name = Path(path).name
    if name in dax_names(sys_root):
        problem = problem_of(name, sys_root)
        return problem or f"{path} has no device node; run: udevadm trigger --subsystem-match=dax"
    return f"there is no {path}; run: daxctl list -D, and make one with: cxl create-region -m mem0"


def _open(path: str, *, writable: bool) -> int:
    try:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        user = _user()
        rights = "rw" if writable else "r"
        raise TransportUnavailable(
            f"no permission to open {path}: {user} may not {'write' if writable else 'read'} it; run as root: "
            f"setfacl -m u:{user}:{rights} {shlex.quote(path)}"
        ) from None
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise TransportUnavailable(
                f"{path} is busy: another program or driver has taken it for itself; run: fuser -v {path}"
            ) from None
        raise TransportUnavailable(f"{path} cannot be opened: {error.strerror}; run: daxctl list -D") from None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _identity(node: Path) -> str:
    return f"dax {node}"


def _number(path: Path) -> int:
    try:
        return int(path.read_text("ascii"), 0)
    except (OSError, ValueError):
        return 0
