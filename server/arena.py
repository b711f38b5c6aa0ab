"""Where a server's slabs come from. :class:`DirectoryArena` keeps one file a slab on a memory file system.

A slab's file is made whole at once, is never truncated and never used for another slab: whoever still maps it
keeps its pages, and only they. Files whose names are not of our pattern are never touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Final, Protocol

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import FarpoolError, InvalidArgument, PoolFull
from farpool.protocol.units import format_bytes
from farpool.server.catalog import SlabRow
from farpool.server.generations import GenerationFile, Generations
from farpool.server.settings import ConfigurationError
from farpool.transports.contract import Mode, ServedDevice

__all__ = [
    "MEMORY_FILE_SYSTEMS",
    "Arena",
    "DirectoryArena",
    "file_system_of",
    "lock_folder",
    "open_private_folder",
]

MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs", "famfs", "devdax"})
"""File systems whose files are memory, and are gone when the machine restarts (but famfs); and a device of memory."""

CONTROL_FOLDER: Final = ".farpool"
RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 256 << 10
"""Room for the first writes of a start, so that a server comes up on an arena that is full."""

_SLAB_NAME = re.compile(r"slab-([1-9][0-9]{0,18})\Z", re.ASCII)


class Arena(Protocol):
    """What the server needs of an arena: of a directory with a file a slab, or of a device cut into extents."""

    @property
    def path(self) -> str:
        """The directory or device."""
        ...

    @property
    def control_path(self) -> str:
        """Directory with the catalog, the generation words and the lock."""
        ...

    @property
    def control_fd(self) -> int:
        """Descriptor of that directory."""
        ...

    @property
    def lock_fd(self) -> int:
        """Descriptor that holds the arena for this server; a successor that has it too goes on holding it."""
        ...

    @property
    def volatile(self) -> bool:
        """Tell whether a restart of the machine empties the arena."""
        ...

    @property
    def file_system(self) -> str:
        """What the memory belongs to, one of ``MEMORY_FILE_SYSTEMS`` where it is memory."""
        ...

    @property
    def room(self) -> int:
        """Bytes that all slabs can take at most."""
        ...

    @property
    def reuses_memory(self) -> bool:
        """Tell whether a slab's memory may be another's later, so that every holder must have let go before."""
        ...

    @property
    def incoherent(self) -> bool:
        """Tell whether other hosts' stores show only once our cache lines are dropped, and ours once written back."""
        ...

    @property
    def device(self) -> ServedDevice | None:
        """The device that clients open by themselves; None where each slab has a file."""
        ...

    def open_generations(self) -> Generations:
        """Return the arena's generation words; the caller closes them."""
        ...

    def recover(self, rows: list[SlabRow], generations: Generations) -> None:
        """Take note of what the catalog knows, before anything else is asked."""
        ...

    def charge(self, nbytes: int) -> int:
        """Return the bytes that a slab of *nbytes* really takes."""
        ...

    def create(self, slab_id: int, nbytes: int) -> None:
        """Make the slab's zeroed memory, all of it reserved; raise ``PoolFull``. Any thread may call it."""
        ...

    def offset(self, slab_id: int) -> int | None:
        """Return where the slab begins on the device; None where it has a file."""
        ...

    def open_descriptor(self, slab_id: int, mode: Mode) -> int:
        """Return a new descriptor of the slab's memory; the caller closes it."""
        ...

    def map(self, slab_id: int, nbytes: int) -> MemoryMapping:
        """Return a new read-write mapping of the slab."""
        ...

    def remove(self, slab_id: int) -> None:
        """Let go of the slab's memory; nothing happens if there is none. Any thread may call it."""
        ...

    def reclaim(self, slab_id: int) -> None:
        """Use the memory of a removed slab again, which nobody can have mapped any more."""
        ...

    def slabs(self) -> dict[int, int]:
        """Return the slabs that have memory, with its length in bytes."""
        ...

    def keep_reserve(self) -> bool:
        """Hold some room back for the catalog of the next start; return whether there was room for it."""
        ...

    def use_reserve(self) -> None:
        """Give the room that was held back to whatever comes next."""
        ...

    def discard(self) -> None:
        """Remove the arena if this very object made it, when its server has not come up."""
        ...

    def close(self) -> None:
        """Give the arena up to the next server; slabs stay."""
        ...


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
            self.control_fd = _open_control_folder(path, self._fd)
            undo.callback(os.close, self.control_fd)
            self.lock_fd = lock_folder(path, self.control_fd, lock_fd)
            undo.callback(os.close, self.lock_fd)
            self._made = made  # and nobody else's now
            self.file_system = file_system_of(os.fstat(self._fd).st_dev)
            huge = self.file_system == "hugetlbfs"
            self.page = os.fstatvfs(self._fd).f_bsize if huge else os.sysconf("SC_PAGESIZE")
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
        """Unlink the slab's file; its pages go when nobody maps it any more."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"slab-{slab_id}", dir_fd=self._fd)

    def reclaim(self, slab_id: int) -> None:
        """Do nothing: the kernel takes the pages of an unlinked file back."""

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


def open_private_folder(path: str, what: str = "arena") -> int:
    """Return a descriptor of a directory of ours, made if it is missing; raise ``ConfigurationError``."""
    try:
        with contextlib.suppress(FileExistsError):
            Path(path).mkdir(mode=0o700)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if Path(path).is_symlink():
            raise ConfigurationError(f"{what} {path} is a symbolic link; name the directory itself") from None
        mend = {
            errno.ENOENT: "make the directory above it first",
            errno.ENOTDIR: "name a directory",
        }.get(error.errno or 0, "name a directory that this user can write, or mend its rights")
        raise ConfigurationError(f"{what} {path} cannot be used: {error.strerror}; {mend}") from None
    problem = _rights_problem(path, os.fstat(fd))
    if problem:
        os.close(fd)
        raise ConfigurationError(f"{what} {path} {problem}")
    return fd


def _rights_problem(path: str, status: os.stat_result) -> str:
    if status.st_uid != os.geteuid():
        mend = "name another with --arena, or chown it"
        return f"belongs to uid {status.st_uid}, the server runs as {os.geteuid()}; {mend}"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); run: chmod go-w {path}"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return f"is not writable by uid {os.geteuid()}; run: chmod u+rwx {path}, or name another with --arena"
    return ""


def _open_control_folder(path: str, arena_fd: int) -> int:
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(CONTROL_FOLDER, 0o700, dir_fd=arena_fd)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(CONTROL_FOLDER, flags, dir_fd=arena_fd)
    except OSError as error:
        raise ConfigurationError(
            f"arena {path} is not writable: {error.strerror} ({CONTROL_FOLDER}); mend its rights or name "
            "another with --arena"
        ) from None
    problem = _rights_problem(f"{path}/{CONTROL_FOLDER}", os.fstat(fd))
    if problem:
        os.close(fd)
        raise ConfigurationError(f"arena {path}: its folder {CONTROL_FOLDER} {problem}")
    return fd


def lock_folder(path: str, control_fd: int, inherited: int | None = None) -> int:
    """Return a descriptor that holds the lock of the arena *path*; raise ``ConfigurationError`` if another does.

    An *inherited* one holds it already, and is returned.
    """
    if inherited is not None:
        if not os.path.samestat(os.fstat(inherited), os.stat("lock", dir_fd=control_fd)):
            raise ConfigurationError(f"what was taken over is not the lock of the arena {path}; start again")
        os.pwrite(inherited, b"%-20d\n" % os.getpid(), 0)
        return inherited
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open("lock", flags, 0o600, dir_fd=control_fd)
    except OSError as error:
        raise ConfigurationError(
            f"arena {path} is not writable: {error.strerror} ({CONTROL_FOLDER}/lock); mend its rights or "
            "name another with --arena"
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(fd, b"%-20d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise ConfigurationError(
            f"arena {path} is in use by the farpool server with pid {pid}; stop that one, or name another "
            "arena with --arena"
        ) from None
    except OSError as error:
        os.close(fd)
        raise ConfigurationError(f"arena {path} cannot be locked: {error.strerror}") from None
    return fd
