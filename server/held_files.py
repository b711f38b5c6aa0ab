"""Whether anybody else has a slab's file open or mapped: the kernel knows, whatever clients say.

It grants a write lease on a file only while nobody else has it open, in any process, and who maps a file has it open.
Descriptors that are passed to clients are opened for them, and so are somebody else's.
"""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Final

__all__ = ["sees_holders", "take_back"]

FLAGS: Final = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Not to wait until somebody else gives a lease back."""

TRIAL: Final = "trial"
"""Name of the file that is made to see whether the kernel tells."""


def take_back(name: str, folder: int) -> bool:
    """Remove a file that nobody else has open or mapped; return False, and leave it, if somebody has.

    It is emptied too: a descriptor that was opened with ``O_PATH`` does not count, and would keep its pages.

    Raises:
        OSError: the kernel does not tell, or the file cannot be removed.
    """
    try:
        fd = os.open(name, FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    try:
        if not _is_alone(fd):
            return False
        os.unlink(name, dir_fd=folder)
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)  # and with it goes the lease
    return True


def sees_holders(folder: int) -> bool:
    """Try out whether the kernel tells for the files of a folder that is ours alone."""
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(TRIAL, flags, 0o600, dir_fd=folder))
        other = os.open(TRIAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            told = not take_back(TRIAL, folder)
        finally:
            os.close(other)
        return told and take_back(TRIAL, folder)
    except OSError:
        return False


def _is_alone(fd: int) -> bool:
    """Take a lease on a file of which we have opened *fd*; return False if somebody else has it open."""
    # Whoever opens it meanwhile waits for us, who are told: by a signal that is ignored, and not SIGIO, which kills.
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    return True
