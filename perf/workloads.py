"""What ``quick`` measures: each operation through the client API, beside the limit that it is compared with.

A workload's two contenders use the same buffer and the same offsets; over cxl they use the same mapping too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from farpool import Pool, Slab
from farpool.perf.calls import Move, Readv, additions, batches, copies, loads
from farpool.perf.limit_contenders import Limit, Limits, ReadLimits, kernel_alone, numpy_copy
from farpool.perf.rounds import Contender, in_python
from farpool.perf.rows import BULK_NBYTES
from farpool.perf.walk import Bytes, filled, places

__all__ = ["Workload", "allocation_workload", "data_workloads", "numpy_workload", "read_workload", "readv_workload"]

SIZES: Final = (64, 4 << 10, 64 << 10, 1 << 20, 8 << 20)
SMALLEST: Final = SIZES[0]
BATCHES: Final = ((32, 4 << 10), (16, 64 << 10))
"""Parts and bytes of a part: many small ones, and sixteen large ones in flight."""
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
        yield read_workload(slab.read_into, limits, nbytes)
    for nbytes in SIZES:
        offsets, buffer = places(nbytes), _buffer(nbytes)
        ours = copies(slab.write, buffer, offsets)
        yield Workload("write", nbytes, ours, limits.write(offsets, buffer, nbytes))
    for batch, nbytes in BATCHES:
        yield readv_workload(slab.readv, limits, nbytes, batch)
    offsets = places(WORD_NBYTES)
    ours, limit = additions(slab, offsets), limits.add(offsets)
    yield Workload("fetch_add", WORD_NBYTES, ours, limit, moves_bytes=False)
    yield Workload("load", WORD_NBYTES, loads(slab, offsets), limits.load(offsets), moves_bytes=False)


def readv_workload(readv: Readv, limits: ReadLimits, nbytes: int, batch: int) -> Workload:
    """Return batches of reads into parts of one buffer."""
    offsets, buffer = places(nbytes, batch), _buffer(batch * nbytes)
    ours = batches(readv, buffer, offsets, nbytes, batch)
    return Workload("readv", nbytes, ours, limits.read(offsets, buffer, nbytes), batch)


def read_workload(read_into: Move, limits: ReadLimits, nbytes: int) -> Workload:
    """Return reads, one after the other."""
    offsets, buffer = places(nbytes), _buffer(nbytes)
    return Workload("read_into", nbytes, copies(read_into, buffer, offsets), limits.read(offsets, buffer, nbytes))


def _buffer(nbytes: int) -> Bytes:
    """Return what a call of *nbytes* reads into or writes from.

    A large one is an array, as ``docs/rdma.md`` tells users to take: it is registered with a device once.
    """
    source = filled(nbytes)
    return source if nbytes < BULK_NBYTES else np.array(source)


def numpy_workload(slab: Slab, memory: memoryview) -> Workload:
    """Return the smallest read beside numpy's own slice copy on the same mapping."""
    offsets, buffer = places(SMALLEST), filled(SMALLEST)
    ours = copies(slab.read_into, buffer, offsets)
    return Workload("read_into", SMALLEST, ours, numpy_copy(memory, offsets, buffer))


def allocation_workload(pool: Pool) -> Workload:
    """Return pairs of an allocation and a free, one after the other."""
    return Workload(
        "allocate+free", ALLOCATION_NBYTES, allocations(pool), kernel_alone(ALLOCATION_NBYTES), moves_bytes=False
    )


def allocations(pool: Pool) -> Contender:
    """Return pairs of an allocation and a free."""

    def run(block: Sequence[None]) -> None:
        for _ in block:
            pool.allocate(ALLOCATION_NBYTES).free()

    return in_python(run, [None])
