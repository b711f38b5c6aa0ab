"""What ``quick`` measures: each operation through the client API, beside the limit that it is compared with.

A workload's two contenders use the same buffer and the same offsets; over cxl they use the same mapping too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

from farpool import Pool, Slab
from farpool.perf.limit_contenders import Limit, Limits, kernel_alone, numpy_copy
from farpool.perf.rounds import Contender, in_python
from farpool.perf.rows import BULK_NBYTES
from farpool.perf.walk import Int64Array, filled, places

__all__ = ["Workload", "allocation_workload", "data_workloads", "numpy_workload"]

SIZES: Final = (64, 4 << 10, 64 << 10, 1 << 20, 8 << 20)
SMALLEST: Final = SIZES[0]
BATCH: Final = 32
BATCH_NBYTES: Final = 4 << 10
WORD_NBYTES: Final = 8
ALLOCATION_NBYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Workload:
    """One row to be measured."""

    op: str
    nbytes: int
    ours: Contender
    limit: Limit
    batch: int = 1
    moves_bytes: bool = True
    """Whether GB/s say anything; they don't of allocations and single words."""

    @property
    def call_nbytes(self) -> int:
        """Bytes of slabs that one call moves."""
        return self.nbytes * self.batch if self.moves_bytes else 0

    @property
    def is_bulk(self) -> bool:
        """Whether GB/s are compared, rather than p50."""
        return self.call_nbytes >= BULK_NBYTES

    def __str__(self) -> str:
        size = f"{self.nbytes >> 10} KiB" if self.nbytes >= 1 << 10 else f"{self.nbytes} B"
        return f"{self.op} {f'{self.batch} x ' if self.batch > 1 else ''}{size}"


def data_workloads(slab: Slab, limits: Limits) -> Iterator[Workload]:
    """Make the workloads of one transport, each when it is its turn."""
    for nbytes in SIZES:
        offsets, buffer = places(nbytes), filled(nbytes)
        ours = _copies(slab.read_into, buffer, offsets)
        yield Workload("read_into", nbytes, ours, limits.read(offsets, buffer, nbytes))
    for nbytes in SIZES:
        offsets, buffer = places(nbytes), filled(nbytes)
        ours = _copies(slab.write, buffer, offsets)
        yield Workload("write", nbytes, ours, limits.write(offsets, buffer, nbytes))
    offsets, buffer = places(BATCH_NBYTES, BATCH), filled(BATCH * BATCH_NBYTES)
    limit = limits.read(offsets, buffer, BATCH_NBYTES)
    yield Workload("readv", BATCH_NBYTES, _batches(slab, buffer, offsets), limit, BATCH)
    offsets = places(WORD_NBYTES)
    ours, limit = _additions(slab, offsets), limits.add(offsets)
    yield Workload("fetch_add", WORD_NBYTES, ours, limit, moves_bytes=False)
    yield Workload("load", WORD_NBYTES, _loads(slab, offsets), limits.load(offsets), moves_bytes=False)


def numpy_workload(slab: Slab, memory: memoryview) -> Workload:
    """Return the smallest read beside numpy's own slice copy on the same mapping."""
    offsets, buffer = places(SMALLEST), filled(SMALLEST)
    ours = _copies(slab.read_into, buffer, offsets)
    return Workload("read_into", SMALLEST, ours, numpy_copy(memory, offsets, buffer))


def allocation_workload(pool: Pool) -> Workload:
    """Return pairs of an allocation and a free, one after the other."""

    def run(block: Sequence[None]) -> None:
        for _ in block:
            pool.allocate(ALLOCATION_NBYTES).free()

    limit = kernel_alone(ALLOCATION_NBYTES)
    return Workload("allocate+free", ALLOCATION_NBYTES, in_python(run, [None]), limit, moves_bytes=False)


def _copies(move: Callable[[bytearray, int], int], buffer: bytearray, offsets: Int64Array) -> Contender:
    def run(block: Sequence[int]) -> None:
        for offset in block:
            move(buffer, offset)

    return in_python(run, offsets.tolist())


def _batches(slab: Slab, buffer: bytearray, offsets: Int64Array) -> Contender:
    readv, whole = slab.readv, memoryview(buffer)
    parts = cycle(whole[begin : begin + BATCH_NBYTES] for begin in range(0, len(whole), BATCH_NBYTES))
    turn = zip(offsets.tolist(), parts, strict=False)
    batches = [list(islice(turn, BATCH)) for _ in range(len(offsets) // BATCH)]

    def run(block: Sequence[list[tuple[int, memoryview]]]) -> None:
        for batch in block:
            readv(batch)

    return in_python(run, batches)


def _additions(slab: Slab, offsets: Int64Array) -> Contender:
    fetch_add = slab.fetch_add

    def run(block: Sequence[int]) -> None:
        for offset in block:
            fetch_add(offset, 1)

    return in_python(run, offsets.tolist())


def _loads(slab: Slab, offsets: Int64Array) -> Contender:
    load = slab.load

    def run(block: Sequence[int]) -> None:
        for offset in block:
            load(offset)

    return in_python(run, offsets.tolist())
