"""The bounds of a transport whose slab is mapped here, beside memcpy and an empty call of the interpreter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from farpool import Slab
from farpool.perf.bounds import Bound, added_ns, added_us, of_rate
from farpool.perf.calls import additions, copies, copies_by_keyword, empty_calls, gathers, loads, stores, swaps
from farpool.perf.limit_contenders import Limit, MappingLimits
from farpool.perf.rounds import Contender
from farpool.perf.walk import filled, places, scattered

__all__ = ["mapped_bounds"]

SMALL: Final = 64
WORD_NBYTES: Final = 8
MOST_ADDED_NS: Final = 60.0
"""On top of the bare memcpy, for 64 bytes."""
MOST_ADDED_WORD_NS: Final = 20.0
"""On top of an empty call, for one word."""
BATCH: Final = 32
MANY: Final = 15_000
PART_NBYTES: Final = 4 << 10
LEAST_SHARE_BATCH: Final = 0.7
MOST_ADDED_MANY_US: Final = 2000.0
"""On top of the copies, for the description of so many parts."""
SHARES: Final = ((4 << 10, 0.95), (64 << 10, 0.95), (1 << 20, 0.95), (8 << 20, 1.0))
"""Sizes, and the least share of memcpy's throughput."""


def mapped_bounds(slab: Slab, memory: memoryview) -> Iterator[Bound]:
    """Return each bound, when it is its turn; *memory* is a view of the slab."""
    limits = MappingLimits(memory)
    offsets, buffer = places(SMALL), filled(SMALL)
    reading, writing = limits.read(offsets, buffer, SMALL), limits.write(offsets, buffer, SMALL)
    for name, move, limit in (("read_into", slab.read_into, reading), ("write", slab.write, writing)):
        yield _added(f"cxl {name} 64 B", copies(move, buffer, offsets), limit, MOST_ADDED_NS)
        yield _added(f"cxl {name} 64 B, offset=", copies_by_keyword(move, buffer, offsets), limit, MOST_ADDED_NS)
    for nbytes, share in SHARES:
        offsets = places(nbytes)
        target = filled(nbytes)
        for name, move, limit in (
            ("read_into", slab.read_into, limits.read(offsets, target, nbytes)),
            ("write", slab.write, limits.write(offsets, target, nbytes)),
        ):
            assert limit.run is not None
            what = f"cxl {name} {_size(nbytes)}"
            yield of_rate(what, copies(move, target, offsets), limit.run, limit.name, share, nbytes)
    yield from _gathering(slab, limits)
    offsets = places(WORD_NBYTES)
    empty = Limit(empty_calls(offsets), "empty call")
    for name, call in (("load", loads), ("store", stores), ("fetch_add", additions), ("compare_swap", swaps)):
        yield _added(f"cxl {name} 8 B", call(slab, offsets), empty, MOST_ADDED_WORD_NS)


def _gathering(slab: Slab, limits: MappingLimits) -> Iterator[Bound]:
    offsets, target = places(PART_NBYTES, BATCH), filled(BATCH * PART_NBYTES)
    limit = limits.read(offsets, target, PART_NBYTES)
    assert limit.run is not None
    ours = gathers(slab.gather, target, offsets, PART_NBYTES, BATCH)
    yield of_rate(f"cxl gather {BATCH} x 4 KiB", ours, limit.run, limit.name, LEAST_SHARE_BATCH, len(target))
    offsets, target = scattered(PART_NBYTES, MANY), filled(MANY * PART_NBYTES)
    ours = gathers(slab.gather, target, offsets, PART_NBYTES, MANY)
    limit = limits.read(offsets, target, PART_NBYTES)
    assert limit.run is not None
    yield added_us(f"cxl gather {MANY} x 4 KiB", ours, limit.run, limit.name, MOST_ADDED_MANY_US)


def _added(what: str, ours: Contender, limit: Limit, bound: float) -> Bound:
    assert limit.run is not None
    return added_ns(what, ours, limit.run, limit.name, bound)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
