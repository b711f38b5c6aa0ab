"""The awaitable twin of a cxl region: memory answers at once, so it copies inline, a bounded step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from farpool.native.checks import seconds_of
from farpool.native.cxl_region import CxlRegion
from farpool.native.equal_parts import EqualParts
from farpool.protocol.errors import InvalidArgument, UnsuitableBuffer

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AwaitableCxlRegion"]

STEP_BYTES = 4 << 20
"""Bytes copied before the loop has its turn: about half a millisecond at 10 GB/s."""


class AwaitableCxlRegion:
    """Copies on the loop's own thread, which no other thread could do faster; large copies yield between steps."""

    def __init__(self, region: CxlRegion) -> None:
        self._region = region

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""
        whole = _as_bytes(buffer)
        if whole is None or whole.nbytes <= STEP_BYTES:
            return self._region.read_into(buffer, offset, timeout)
        self._region.readv([(offset, whole[:0]), (offset + whole.nbytes, whole[:0])], timeout)  # checks first
        for start in range(0, whole.nbytes, STEP_BYTES):
            self._region.read_into(whole[start : start + STEP_BYTES], offset + start)
            await asyncio.sleep(0)
        return whole.nbytes

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""
        return self._region.read(nbytes, offset, timeout)

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        whole = _as_bytes(buffer)
        if whole is None or whole.nbytes <= STEP_BYTES:
            return self._region.write(buffer, offset, timeout)
        self._region.writev([(offset, whole[:0]), (offset + whole.nbytes, whole[:0])], timeout)  # checks first
        for start in range(0, whole.nbytes, STEP_BYTES):
            self._region.write(whole[start : start + STEP_BYTES], offset + start)
            await asyncio.sleep(0)
        return whole.nbytes

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch."""
        return self._region.readv(parts, timeout)

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch."""
        return self._region.writev(parts, timeout)

    async def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        seconds_of(timeout, 0.0)  # not needed, and still to be one
        return await self._move(self._region.describe(offsets, nbytes, out, inward=True))

    async def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        seconds_of(timeout, 0.0)  # not needed, and still to be one
        return await self._move(self._region.describe(offsets, nbytes, source, inward=False))

    async def _move(self, parts: EqualParts) -> int:
        step = STEP_BYTES // max(parts.part_nbytes, 1) or 1
        for first in range(0, parts.count, step):
            self._region.move_parts(parts, first, step)
            if first + step < parts.count:
                await asyncio.sleep(0)
        return parts.nbytes

    async def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned word at *offset*."""
        return self._region.load(offset, timeout)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        self._region.store(offset, value, timeout)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* to the aligned word at *offset* atomically; return the old value."""
        return self._region.fetch_add(offset, value, timeout)

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        return self._region.compare_swap(offset, expected, new, timeout)

    async def close(self) -> None:
        """Let go of the slab."""
        self._region.close()


def _as_bytes(buffer: Buffer) -> memoryview | None:
    """Return the bytes of a buffer that can be cut into steps; None leaves the error to the region itself."""
    try:
        return memoryview(buffer).cast("B")
    except (TypeError, ValueError, BufferError, InvalidArgument, UnsuitableBuffer):
        return None
