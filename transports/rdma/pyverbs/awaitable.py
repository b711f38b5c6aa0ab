"""The awaitable twins of pyverbs regions: each operation in a thread, on memory that the caller does not see.

A cancelled operation goes on in its thread until it is done or late, and touches nothing of the caller's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from farpool.native.checks import seconds_of
from farpool.transports.threads import in_thread, keep

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from farpool.native.remote_region import RemoteRegion

__all__ = ["AwaitablePyverbsRegion"]

T = TypeVar("T")

LEAST_SECONDS = 1e-6
"""What is left of a deadline that passed before a thread was free: still a time, and too short for anything."""


class AwaitablePyverbsRegion:
    """The awaitable twin of one region, which works in *threads*, the session's."""

    def __init__(self, region: RemoteRegion, timeout: float, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._region = region
        self._timeout = timeout

    async def _run(self, call: Callable[[float], T], timeout: float | None) -> T:
        """Do *call* in a thread; the time that it waits for one counts."""
        deadline = time.monotonic() + seconds_of(timeout, self._timeout)
        self._region.check_range(0, 0)  # a closed region has no threads any more
        return await in_thread(
            self._threads, deadline, keep, lambda: call(max(LEAST_SECONDS, deadline - time.monotonic()))
        )

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""
        return await self.readv([(offset, buffer)], timeout)

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""
        self._region.check_range(offset, nbytes)
        return await self._run(lambda left: self._region.read(nbytes, offset, left), timeout)

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        return await self.writev([(offset, buffer)], timeout)

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch and return the bytes read."""
        wanted = list(parts)
        self._region.check_parts(wanted, writes=False)
        targets = [_bytes_of(buffer) for _, buffer in wanted]
        private = [(offset, bytearray(target.nbytes)) for (offset, _), target in zip(wanted, targets, strict=True)]
        nbytes = await self._run(lambda left: self._region.readv(private, left), timeout)
        for target, (_, data) in zip(targets, private, strict=True):
            target[:] = data
        return nbytes

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch and return the bytes written."""
        wanted = list(parts)
        self._region.check_parts(wanted, writes=True)
        private = [(offset, bytes(buffer)) for offset, buffer in wanted]
        return await self._run(lambda left: self._region.writev(private, left), timeout)

    async def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned word at *offset*."""
        return await self._run(lambda left: self._region.load(offset, left), timeout)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        await self._run(lambda left: self._region.store(offset, value, left), timeout)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* to the aligned word at *offset* atomically; return the old value."""
        return await self._run(lambda left: self._region.fetch_add(offset, value, left), timeout)

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        return await self._run(lambda left: self._region.compare_swap(offset, expected, new, left), timeout)

    async def close(self) -> None:
        """Let go of the slab."""
        self._region.close()


def _bytes_of(buffer: Buffer) -> memoryview:
    """Return *buffer* as plain bytes; an empty array of several dimensions has no such view."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(bytearray())
