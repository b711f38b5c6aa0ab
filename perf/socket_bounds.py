"""The bounds of tcp, beside C loops over a raw connection of the same kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from farpool import Slab
from farpool.perf.bounds import Bound, added_us, of_rate, times
from farpool.perf.calls import Move, batches, copies, gathers
from farpool.perf.limit_contenders import Limit, SocketLimits
from farpool.perf.raw_socket import RawSocket
from farpool.perf.rounds import Contender, in_python
from farpool.perf.walk import Bytes, Int64Array, filled, places, scattered

__all__ = ["bulk_bounds", "small_bounds"]

SMALL: Final = ((64, "64 B"), (4 << 10, "4 KiB"))
MOST_TIMES: Final = 1.10
MOST_TIMES_P99: Final = 1.2
BULK: Final = ((64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (8 << 20, "8 MiB"))
LEAST_SHARE: Final = 0.95
BATCH: Final = 32
PART_NBYTES: Final = 4 << 10
MOST_TIMES_BATCH: Final = 1.4
MANY: Final = 15_000
MOST_ADDED_MANY_US: Final = 2000.0
"""On top of reading as many bytes, for describing and posting so many parts."""


def small_bounds(slab: Slab, raw: RawSocket, where: str) -> Iterator[Bound]:
    """Return the bounds of small reads, with both ends placed as *where* says."""
    limits = SocketLimits(raw)
    for nbytes, size in SMALL:
        offsets, buffer = places(nbytes), filled(nbytes)
        limit = limits.read(offsets, buffer, nbytes)
        assert limit.run is not None
        ours = copies(slab.read_into, buffer, offsets)
        what = f"tcp read_into {size}, {where}"
        yield times(what, ours, limit.run, limit.name, MOST_TIMES)
        yield times(what, ours, limit.run, limit.name, MOST_TIMES_P99, p99=True)


def bulk_bounds(slab: Slab, raw: RawSocket) -> Iterator[Bound]:
    """Return the bounds of large reads and writes, and of batches of small ones, over one connection."""
    limits = SocketLimits(raw)
    for nbytes, size in BULK:
        offsets, buffer = places(nbytes), np.array(filled(nbytes))
        yield _share(f"tcp read_into {size}", slab.read_into, limits.read(offsets, buffer, nbytes), buffer, offsets)
        yield _share(f"tcp write {size}", slab.write, limits.write(offsets, buffer, nbytes), buffer, offsets)
    offsets, parts = places(PART_NBYTES, BATCH), filled(BATCH * PART_NBYTES)
    limit = limits.read(offsets, parts, PART_NBYTES)
    assert limit.run is not None
    ours = batches(slab.readv, parts, offsets, PART_NBYTES, BATCH)
    yield times(f"tcp readv {BATCH} x 4 KiB", ours, limit.run, limit.name, MOST_TIMES_BATCH)
    ours = gathers(slab.gather, parts, offsets, PART_NBYTES, BATCH)
    yield times(f"tcp gather {BATCH} x 4 KiB", ours, limit.run, limit.name, MOST_TIMES_BATCH)
    offsets, parts = scattered(PART_NBYTES, MANY), filled(MANY * PART_NBYTES)
    ours = gathers(slab.gather, parts, offsets, PART_NBYTES, MANY)
    yield added_us(f"tcp gather {MANY} x 4 KiB", ours, _read_twice(slab, parts), "two reads", MOST_ADDED_MANY_US)


def _read_twice(slab: Slab, buffer: Bytes) -> Contender:
    """Return reads of as many bytes as *buffer* has, which is more than a slab: what they take without parts."""
    whole = memoryview(buffer)
    halves = whole[: len(whole) // 2], whole[len(whole) // 2 :]

    def run(block: Sequence[int]) -> None:
        for _ in block:
            for half in halves:
                slab.read_into(half)

    return in_python(run, [0])


def _share(what: str, move: Move, limit: Limit, buffer: Bytes, offsets: Int64Array) -> Bound:
    assert limit.run is not None
    return of_rate(what, copies(move, buffer, offsets), limit.run, limit.name, LEAST_SHARE, len(buffer))
