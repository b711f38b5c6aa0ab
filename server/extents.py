"""Which runs of a device are free: an allocator of extents that grows neighbours together again.

Pure arithmetic on offsets; it knows neither devices nor slabs. Not thread-safe.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from farpool.protocol.errors import InvalidArgument

__all__ = ["Extent", "ExtentAllocator"]


class Extent(NamedTuple):
    """A run of bytes of a device."""

    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte after it."""
        return self.offset + self.nbytes


class ExtentAllocator:
    """Hands out extents of [start, end), each a multiple of *align* long and at a multiple of it.

    The smallest free run that is long enough is cut, the first of equals: large runs stay large. What is left over
    at both ends of the device for want of alignment is never handed out.
    """

    def __init__(self, start: int, end: int, align: int) -> None:
        self.align = align
        self._runs: list[Extent] = []  # free, in the order of offsets; two of them never touch
        first, last = -(-start // align) * align, end // align * align
        self.total = max(0, last - first)
        if self.total:
            self._runs.append(Extent(first, self.total))
        self._end = first + self.total
        self._first = first

    @property
    def free(self) -> int:
        """Bytes that are free in all."""
        return sum(run.nbytes for run in self._runs)

    @property
    def longest(self) -> int:
        """Bytes of the longest free run: the most that one extent can have now."""
        return max((run.nbytes for run in self._runs), default=0)

    @property
    def runs(self) -> tuple[Extent, ...]:
        """The free runs in the order of offsets."""
        return tuple(self._runs)

    def round_up(self, nbytes: int) -> int:
        """Return how long an extent for *nbytes* is."""
        return max(1, -(-nbytes // self.align)) * self.align

    def take(self, nbytes: int) -> Extent | None:
        """Cut an extent for *nbytes* from the free runs; None if no run is long enough."""
        wanted = self.round_up(nbytes)
        fitting = [index for index, run in enumerate(self._runs) if run.nbytes >= wanted]
        if not fitting:
            return None
        index = min(fitting, key=lambda index: self._runs[index].nbytes)
        run = self._runs[index]
        taken = Extent(run.offset, wanted)
        self._runs[index : index + 1] = [] if run.nbytes == wanted else [Extent(taken.end, run.nbytes - wanted)]
        return taken

    def claim(self, extent: Extent) -> None:
        """Take this very extent, which a slab had before a restart; raise ``InvalidArgument`` if it is not free."""
        index = bisect.bisect_right(self._runs, extent.offset, key=lambda run: run.offset) - 1
        run = self._runs[index] if index >= 0 else Extent(0, 0)
        if not self._is_ours(extent) or extent.end > run.end:
            raise InvalidArgument(
                f"the {extent.nbytes} bytes at {extent.offset} are not free, or outside of the device"
            )
        pieces = Extent(run.offset, extent.offset - run.offset), Extent(extent.end, run.end - extent.end)
        self._runs[index : index + 1] = [piece for piece in pieces if piece.nbytes]

    def give_back(self, extent: Extent) -> None:
        """Free an extent that was taken; raise ``InvalidArgument`` if some of it is free already."""
        index = bisect.bisect_left(self._runs, extent.offset, key=lambda run: run.offset)
        before = self._runs[index - 1] if index else None
        after = self._runs[index] if index < len(self._runs) else None
        if (
            not self._is_ours(extent)
            or (before is not None and before.end > extent.offset)
            or (after is not None and after.offset < extent.end)
        ):
            raise InvalidArgument(f"the {extent.nbytes} bytes at {extent.offset} were not taken")
        low, high = index, index
        offset, end = extent.offset, extent.end
        if before is not None and before.end == offset:
            low, offset = index - 1, before.offset
        if after is not None and after.offset == end:
            high, end = index + 1, after.end
        self._runs[low:high] = [Extent(offset, end - offset)]

    def _is_ours(self, extent: Extent) -> bool:
        aligned = extent.offset % self.align == 0 and extent.nbytes % self.align == 0
        return aligned and extent.nbytes > 0 and self._first <= extent.offset and extent.end <= self._end
