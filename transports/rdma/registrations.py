"""A bounded cache of registered buffers: registration costs more than most transfers.

A registration pins the pages that it saw. If the memory is freed or moved and the same address is given out again, the
device still reaches the old pages. So only memory that stays where it is as long as its owner lives is kept: that of
numpy's arrays. While an array is known here it cannot be resized in place; numpy refuses. All else (bytes, bytearray,
mmap, array.array) is registered each time.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict
from typing import Any, Final

from farpool.native.checks import buffer_extent
from farpool.native.fork import fork_count
from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma.binding import VerbsDomain, VerbsMemory

__all__ = ["Registrations"]

MOST_ENTRIES: Final = 256
MOST_BYTES: Final = 1 << 30
"""Pinned for idle buffers at most; operations in flight come on top."""

WHOLE_BYTES: Final = 256 << 20
"""Arrays up to here are registered whole, so that slices of one share a registration."""

Key = tuple[int, int, int]


class Registrations:
    """Registers buffers of one protection domain. Thread-safe.

    What it returns stays registered as long as the caller holds it, even if the cache drops it meanwhile.
    """

    def __init__(self, domain: VerbsDomain, access: int) -> None:
        self._domain = domain
        self._access = access
        self._entries: OrderedDict[Key, tuple[weakref.ref[object], VerbsMemory]] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.RLock()
        self._born = fork_count()

    def __call__(self, owner: object, address: int, nbytes: int) -> VerbsMemory:
        """Return registered memory that covers a buffer of *owner*.

        Raises:
            TransportUnavailable: a limit of registration was met; the message says which.
        """
        root = _root_of(owner)
        if not _stays(root):
            return self._register(address, nbytes)
        key = (id(root), *_extent(root, address, nbytes))
        found = self._find(key, root)
        if found is not None:
            return found
        return self._keep(key, root, self._register(key[1], key[2]))

    def _find(self, key: Key, root: object) -> VerbsMemory | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None or found[0]() is not root:
                return None
            self._entries.move_to_end(key)
            return found[1]

    def _keep(self, key: Key, root: object, memory: VerbsMemory) -> VerbsMemory:
        """Add an entry, unless another thread has; what has to go goes outside of the lock, for that takes time."""
        gone: list[object] = []
        watch = weakref.ref(root, lambda _: self._forget(key))
        with self._lock:
            found = self._find(key, root)
            if found is not None:
                return found
            gone.append(self._take(key))
            self._entries[key] = watch, memory
            self._nbytes += key[2]
            while self._nbytes > MOST_BYTES or len(self._entries) > MOST_ENTRIES:
                gone.append(self._take(next(iter(self._entries))))
        gone.clear()
        return memory

    def _register(self, address: int, nbytes: int) -> VerbsMemory:
        try:
            return self._domain.register(None, address, nbytes, self._access)
        except TransportUnavailable:
            if not self._entries:
                raise
        self.clear()  # idle buffers of ours may be what fills the limit
        return self._domain.register(None, address, nbytes, self._access)

    def _take(self, key: Key) -> object:
        """Remove an entry and return it; the lock is held."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= key[2]
        return entry

    def _forget(self, key: Key) -> None:
        if self._born != fork_count():
            return  # a child owns none of them, and a thread that it does not have may hold the lock
        with self._lock:
            entry = self._take(key)
        del entry

    def clear(self) -> None:
        """Drop every idle registration."""
        if self._born != fork_count():
            return
        with self._lock:
            entries, self._entries = self._entries, OrderedDict()
            self._nbytes = 0
        entries.clear()

    @property
    def pinned(self) -> int:
        """Bytes that are registered for idle buffers."""
        return self._nbytes

    def __len__(self) -> int:
        return len(self._entries)


def _stays(root: Any) -> bool:
    """Tell whether the memory of *root* stays where it is for as long as that lives: a numpy array's own."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(root, numpy.ndarray) and bool(root.flags.owndata)


def _root_of(owner: Any) -> Any:
    """Return the object that owns the memory: what slices and views of it lead to."""
    while True:
        inner: Any = getattr(owner, "obj" if type(owner) is memoryview else "base", None)
        if inner is None or isinstance(inner, (bytes, int)):
            return owner
        owner = inner


def _extent(root: object, address: int, nbytes: int) -> tuple[int, int]:
    """Return the range to register: all of *root* if it is small enough and covers the buffer, else the buffer."""
    start, size = buffer_extent(root)
    covers = start <= address and address + nbytes <= start + size
    return (start, size) if covers and size <= WHOLE_BYTES else (address, nbytes)
