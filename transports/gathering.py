"""``gather`` and ``scatter`` of regions that have no such methods of their own: they are batches like any others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from farpool.native.equal_parts import list_parts

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from farpool.transports.contract import AwaitableGathering, AwaitableRegion, Gathering, Region

__all__ = ["awaitable_gathering_of", "gathering_of"]


def gathering_of(region: Region, label: str) -> Gathering:
    """Return *region*, of slab *label*, if it gathers by itself; else what does it with its batches."""
    return cast("Gathering", region) if hasattr(region, "gather") else _Gathering(region, label)


def awaitable_gathering_of(twin: AwaitableRegion, nbytes: int, label: str) -> AwaitableGathering:
    """Return the twin of a region of *nbytes* if it gathers by itself; else what does it with its batches."""
    if hasattr(twin, "gather"):
        return cast("AwaitableGathering", twin)
    return _AwaitableGathering(twin, nbytes, label)


class _Gathering:
    def __init__(self, region: Region, label: str) -> None:
        self._region = region
        self._label = label

    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        region = self._region
        return region.readv(list_parts(offsets, nbytes, out, region.nbytes, self._label, inward=True), timeout)

    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        region = self._region
        return region.writev(list_parts(offsets, nbytes, source, region.nbytes, self._label, inward=False), timeout)


class _AwaitableGathering:
    def __init__(self, twin: AwaitableRegion, nbytes: int, label: str) -> None:
        self._nbytes = nbytes
        self._label = label
        self._readv: Callable[..., Awaitable[int]] = twin.readv
        self._writev: Callable[..., Awaitable[int]] = twin.writev

    async def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        return await self._readv(list_parts(offsets, nbytes, out, self._nbytes, self._label, inward=True), timeout)

    async def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        return await self._writev(list_parts(offsets, nbytes, source, self._nbytes, self._label, inward=False), timeout)
