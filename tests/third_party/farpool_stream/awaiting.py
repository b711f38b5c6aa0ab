"""The awaitable twin of a region."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from farpool.transports.contract import Region
from farpool_stream.buffers import source_of, target_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


class AwaitableStreamRegion:
    """Each operation runs in a thread, on private bytes, so that a cancelled one touches no buffer."""

    def __init__(self, region: Region) -> None:
        self._region = region

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer*."""
        return await self.readv([(offset, buffer)], timeout)

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes."""
        return await asyncio.to_thread(self._region.read, nbytes, offset, timeout)

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab."""
        return await self.writev([(offset, buffer)], timeout)

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers."""
        targets = [(offset, target_of(buffer)) for offset, buffer in parts]
        private = [(offset, np.empty_like(target)) for offset, target in targets]
        count = await asyncio.to_thread(self._region.readv, private, timeout)
        for (_, target), (_, read) in zip(targets, private, strict=True):
            target[:] = read
        return count

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers."""
        private = [(offset, source_of(buffer).copy()) for offset, buffer in parts]
        return await asyncio.to_thread(self._region.writev, private, timeout)

    async def load(self, offset: int, timeout: float | None = None) -> int:
        """Return a word."""
        return await asyncio.to_thread(self._region.load, offset, timeout)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set a word."""
        await asyncio.to_thread(self._region.store, offset, value, timeout)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add to a word; return the old value."""
        return await asyncio.to_thread(self._region.fetch_add, offset, value, timeout)

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set a word if it is *expected*; return the old value."""
        return await asyncio.to_thread(self._region.compare_swap, offset, expected, new, timeout)

    async def close(self) -> None:
        """Let go of the slab."""
        self._region.close()
