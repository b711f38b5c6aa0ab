"""Directories that one server keeps to itself: its user's own, written by nobody else, and held with a lock."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from farpool.server.settings import ConfigurationError

__all__ = ["CONTROL_FOLDER", "lock_folder", "open_control_folder", "open_private_folder"]

CONTROL_FOLDER: Final = ".farpool"
"""What a server keeps in an arena beside the slabs."""


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


def open_control_folder(path: str, arena_fd: int) -> int:
    """Return a descriptor of the control folder in an arena, made if it is missing; raise ``ConfigurationError``."""
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


def _rights_problem(path: str, status: os.stat_result) -> str:
    if status.st_uid != os.geteuid():
        mend = "name another with --arena, or chown it"
        return f"belongs to uid {status.st_uid}, the server runs as {os.geteuid()}; {mend}"
    if stat.S_IMODE(status.st_mode) & 0o022:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o}); run: chmod go-w {path}"
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return f"is not writable by uid {os.geteuid()}; run: chmod u+rwx {path}, or name another with --arena"
    return ""
