"""What pyverbs objects need around them: one end each, none in a forked child, and our errors.

pyverbs closes an object when it is collected, and reads through a null pointer when a closed one is asked for its
key. So every object has one owner here, which remembers what others may still ask, and closes it once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import weakref
from collections.abc import Mapping
from typing import Any

from farpool.native.fork import fork_count
from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma.pyverbs import library

__all__ = ["Handle", "PyverbsError", "cause_of", "registration_failure"]

PyverbsError: type[Exception] = library.errors.PyverbsError
"""What every call of pyverbs raises."""

_alive: weakref.WeakSet[Any] = weakref.WeakSet()
_keep = ctypes.pythonapi.Py_IncRef
_keep.argtypes = [ctypes.py_object]
_keep.restype = None


def _keep_all() -> None:
    """Let nothing be collected in a child: it shares the parent's device file, and would destroy there."""
    for inner in list(_alive):
        _keep(inner)


os.register_at_fork(after_in_child=_keep_all)


class Handle:
    """Owns one pyverbs object, which is closed at the end of its handle.

    The finalizer holds the object, so that the garbage collector never sees it: that takes what it finds in any order,
    and pyverbs would end a device before what was made from it.
    """

    def __init__(self, inner: Any) -> None:
        self._inner: Any = inner
        self._born = fork_count()
        self._close = weakref.finalize(self, _close, inner, self._born)
        _alive.add(inner)

    @property
    def inner(self) -> Any:
        """The object, or None once it is closed."""
        return self._inner

    @property
    def inherited(self) -> bool:
        """Whether a parent of this process made it, and it must be left alone."""
        return self._born != fork_count()

    def end(self) -> None:
        """Close it. Idempotent."""
        self._inner = None
        self._close()


def _close(inner: Any, born: int) -> None:
    if born == fork_count():
        with contextlib.suppress(PyverbsError):  # a device that has vanished has nothing left to end
            inner.close()


def cause_of(error: Exception) -> str:
    """Return what the system said; pyverbs does not always pass it on."""
    code = getattr(error, "error_code", -1)
    return os.strerror(code) if code > 0 else str(error)


def registration_failure(device: str, limits: Mapping[str, int], nbytes: int, error: Exception) -> TransportUnavailable:
    """Say which limit a registration has met: its size, locked memory, or the number of regions."""
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    asked = f"RDMA device {device} cannot register {nbytes} bytes ({cause_of(error)})"
    if nbytes > limits["max_mr_size"]:
        return TransportUnavailable(f"{asked}: its limit is {limits['max_mr_size']} bytes a region (max_mr_size)")
    if getattr(error, "error_code", -1) != errno.ENOMEM:
        code = getattr(error, "error_code", -1)
        return TransportUnavailable(f"{asked}: does the memory allow this access?", errno=code)
    if locked != resource.RLIM_INFINITY:
        return TransportUnavailable(
            f"{asked}: the limit of locked memory is {locked} bytes in all; "
            "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit"
        )
    return TransportUnavailable(f"{asked}: it allows {limits['max_mr']} regions (max_mr), or memory is short")
