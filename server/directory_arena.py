"""An arena in a directory: one file a slab on a memory file system.

A slab's file is made whole at once, is never truncated while somebody may map it, and never used for another slab:
whoever still maps it keeps its pages, and only they. It keeps its name until nobody does, so that the next server knows
of it too. Files whose names are not of our pattern are never touched.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import Final

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import FarpoolError, InvalidArgument, PoolFull
from farpool.protocol.units import format_bytes
from farpool.server import held_files
from farpool.server.arena import MEMORY_FILE_SYSTEMS
from farpool.server.catalog import SlabRow
from farpool.server.generations import GenerationFile, Generations
from farpool.server.private_folders import CONTROL_FOLDER, lock_folder, open_control_folder, open_private_folder
from farpool.transports.contract import Mode

__all__ = ["DirectoryArena", "file_system_of"]

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 256 << 10
"""Room for the first writes of a start, so that a server comes up on an arena that is full."""

_SLAB_NAME = re.compile(r"slab-([1-9][0-9]{0,18})\Z", re.ASCII)


class DirectoryArena:
    """A directory, held with a lock for this server alone.

    Raises:
        ConfigurationError: not a directory of ours that we alone can write, or another server holds it.
    """

    def __init__(self, path: str, lock_fd: int | None = None) -> None:
        self.path = path
        self.control_path = f"{path}/{CONTROL_FOLDER}"
        with contextlib.ExitStack() as undo:
            made = _made(path)
            self._fd = open_private_folder(path)
            undo.callback(os.close, self._fd)
            self.control_fd = open_control_folder(path, self._fd)
            undo.callback(os.close, self.control_fd)
            self.lock_fd = lock_folder(path, self.control_fd, lock_fd)
            undo.callback(os.close, self.lock_fd)
            self._made = made  # and nobody else's now
            self.file_system = file_system_of(os.fstat(self._fd).st_dev)
            huge = self.file_system == "hugetlbfs"
            self.page = os.fstatvfs(self._fd).f_bsize if huge else os.sysconf("SC_PAGESIZE")
            self.sees_holders = held_files.sees_holders(self.control_fd)
            undo.pop_all()

    @property
    def volatile(self) -> bool:
        """Tell whether a restart of the machine empties the arena."""
        return self.file_system in MEMORY_FILE_SYSTEMS and self.file_system != "famfs"

    @property
    def room(self) -> int:
        """Bytes that the file system can hold at most, used ones included."""
        statvfs = os.fstatvfs(self._fd)
        return statvfs.f_blocks * statvfs.f_frsize

    @property
    def reuses_memory(self) -> bool:
        """Return False: who maps a removed file keeps its pages, and nobody else gets them."""
        return False

    @property
    def incoherent(self) -> bool:
        """Return False: files are shared by the processes of one host."""
        return False

    @property
    def device(self) -> None:
        """There is none."""
        return

    def open_generations(self) -> GenerationFile:
        """Return the generation file in the control folder."""
        return GenerationFile(f"{self.control_path}/generations", self.control_fd)

    def recover(self, rows: list[SlabRow], generations: Generations) -> None:
        """Do nothing: the files say it all."""

    def charge(self, nbytes: int) -> int:
        """Return *nbytes* in whole pages."""
        return -(-nbytes // self.page) * self.page

    def create(self, slab_id: int, nbytes: int) -> None:
        """Make the slab's file with every page reserved."""
        name = f"slab-{slab_id}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        charged = self.charge(nbytes)
        try:
            fd = os.open(name, flags, 0o600, dir_fd=self._fd)
        except OSError as error:
            raise self._cannot_make(error, charged) from error
        try:
            os.posix_fallocate(fd, 0, charged)
        except OSError as error:
            os.unlink(name, dir_fd=self._fd)
            raise self._cannot_make(error, charged) from error
        finally:
            os.close(fd)

    def offset(self, slab_id: int) -> None:
        """Return None: each slab has a file."""
        return

    def open_descriptor(self, slab_id: int, mode: Mode) -> int:
        """Return a new descriptor of the slab's file."""
        flags = (os.O_RDONLY if mode == "r" else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(f"slab-{slab_id}", flags, dir_fd=self._fd)

    def map(self, slab_id: int, nbytes: int) -> MemoryMapping:
        """Return a new read-write mapping of the slab's file."""
        fd = self.open_descriptor(slab_id, "rw")
        try:
            return MemoryMapping(fd, nbytes, writable=True, guarded=True)
        finally:
            os.close(fd)

    def remove(self, slab_id: int) -> None:
        """Unlink the slab's file; its pages go when nobody holds it any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"slab-{slab_id}", dir_fd=self._fd)

    def reclaim(self, slab_id: int) -> bool:
        """Give the pages of the slab's file back to the kernel, unless somebody is seen to hold it."""
        if self.sees_holders:
            return held_files.take_back(f"slab-{slab_id}", self._fd)
        self.remove(slab_id)
        return True

    def slabs(self) -> dict[int, int]:
        """Return the slabs that have a file, with its length in bytes."""
        found: dict[int, int] = {}
        with os.scandir(self._fd) as entries:
            for entry in entries:
                match = _SLAB_NAME.match(entry.name)
                if match and entry.is_file(follow_symlinks=False):
                    found[int(match[1])] = entry.stat(follow_symlinks=False).st_size
        return found

    def discard(self) -> None:
        """Remove the directory if we made it, and nothing that somebody else has put there since."""
        if self._made:
            shutil.rmtree(self.control_path, ignore_errors=True)
            with contextlib.suppress(OSError):
                Path(self.path).rmdir()

    def keep_reserve(self) -> bool:
        """Hold some pages back for the catalog of the next start; return whether there was room for them."""
        fd = os.open(RESERVE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.control_fd)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def use_reserve(self) -> None:
        """Give the pages that were held back to whatever comes next."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(RESERVE, dir_fd=self.control_fd)

    def close(self) -> None:
        """Unlock and close the directory. May be called twice."""
        if self._fd >= 0:
            for fd in (self.lock_fd, self.control_fd, self._fd):
                os.close(fd)
            self._fd = -1

    def _cannot_make(self, error: OSError, charged: int) -> FarpoolError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM):
            statvfs = os.fstatvfs(self._fd)
            free, room = statvfs.f_bavail * statvfs.f_frsize, statvfs.f_blocks * statvfs.f_frsize
            return PoolFull(
                f"the file system of the arena {self.path} has {format_bytes(free)} free of {format_bytes(room)}; "
                "free slabs, or give it more memory",
                asked=charged,
                file_system_free=free,
            )
        if error.errno in (errno.EFBIG, errno.EINVAL):
            return InvalidArgument(f"the arena's file system makes no file of {format_bytes(charged)}", asked=charged)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return FarpoolError("the server has no file descriptor left; raise its limit (LimitNOFILE, ulimit -n)")
        return FarpoolError(f"the server cannot make a file in its arena {self.path}: {error.strerror}")


def file_system_of(device: int) -> str:
    """Return the type of the file system with that ``st_dev``, ``""`` if the kernel does not list it."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ", 3)[2] == wanted:
            return after.split(" ", 1)[0]
    return ""


def _made(path: str) -> bool:
    """Make the directory; return False if that fails, which :func:`open_private_folder` explains."""
    try:
        Path(path).mkdir(mode=0o700)
    except OSError:
        return False
    return True
