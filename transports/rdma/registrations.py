"""A bounded cache of registered buffers: registration costs more than most transfers.

A registration pins the pages that it saw. If the memory is freed and the same address is given out again, the device
still reaches the old pages; so an entry lives no longer than the object that owned the memory, and belongs to that
object alone. Objects that nobody can watch (bytes, bytearray) are registered each time.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Any, Final

from farpool.native.checks import buffer_extent
from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma.binding import VerbsDomain, VerbsMemory

__all__ = ["Registrations"]

MOST_ENTRIES: Final = 256
MOST_BYTES: Final = 1 << 30
"""Pinned for idle buffers at most; operations in flight come on top."""

WHOLE_BYTES: Final = 256 << 20
"""Objects up to here are registered whole, so that slices of one array share a registration."""

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

    def __call__(self, owner: object, address: int, nbytes: int) -> VerbsMemory:
        """Return registered memory that covers a buffer of *owner*.

        Raises:
            TransportUnavailable: a limit of registration was met; the message says which.
        """
        root = _root_of(owner)
        key = (id(root), *_extent(root, address, nbytes))
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
                return found[1]
        memory = self._register(key[1], key[2])
        try:
            watch = weakref.ref(root, lambda _: self._forget(key))
        except TypeError:
            return memory  # nobody can tell us when it goes: never kept
        with self._lock:
            if key[2] <= WHOLE_BYTES:
                self._forget_moved(key)
            self._entries[key] = watch, memory
            self._nbytes += key[2]
            while self._nbytes > MOST_BYTES or len(self._entries) > MOST_ENTRIES:
                self._forget(next(iter(self._entries)))
        return memory

    def _register(self, address: int, nbytes: int) -> VerbsMemory:
        try:
            return self._domain.register(None, address, nbytes, self._access)
        except TransportUnavailable:
            if not self._entries:
                raise
        self.clear()  # idle buffers of ours may be what fills the limit
        return self._domain.register(None, address, nbytes, self._access)

    def _forget_moved(self, current: Key) -> None:
        """Drop what an object registered before its memory moved (numpy's resize, for one)."""
        for key in [key for key in self._entries if key[0] == current[0] and key != current]:
            self._forget(key)

    def _forget(self, key: Key) -> None:
        with self._lock:
            if self._entries.pop(key, None) is not None:
                self._nbytes -= key[2]

    def clear(self) -> None:
        """Drop every idle registration."""
        with self._lock:
            self._entries.clear()
            self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)


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
