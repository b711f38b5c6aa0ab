"""The bounds of allocations, beside the kernel's own part of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from farpool import Pool
from farpool.perf.bounds import Bound, times
from farpool.perf.limit_contenders import kernel_alone
from farpool.perf.rounds import Contender, in_python
from farpool.perf.walk import Int64Array
from farpool.perf.workloads import ALLOCATION_NBYTES, allocations

__all__ = ["control_bounds"]

TOGETHER: Final = 100
MOST_TIMES: Final = 4.0
MOST_TIMES_TOGETHER: Final = 1.7


def control_bounds(pool: Pool) -> Iterator[Bound]:
    """Return the bounds of pairs of an allocation and a free, one by one and a hundred together."""
    limit = kernel_alone(ALLOCATION_NBYTES)
    assert limit.run is not None
    yield times("allocate+free 64 KiB", allocations(pool), limit.run, limit.name, MOST_TIMES)
    what = f"allocate_many {TOGETHER} x 64 KiB"
    yield times(what, _together(pool), _as_many(limit.run), limit.name, MOST_TIMES_TOGETHER)


def _together(pool: Pool) -> Contender:
    sizes = [ALLOCATION_NBYTES] * TOGETHER

    def run(block: Sequence[None]) -> None:
        for _ in block:
            pool.free_many(pool.allocate_many(sizes))

    return in_python(run, [None])


def _as_many(one: Contender) -> Contender:
    """Return a contender whose samples are of so many of *one*'s as ours makes in a call."""

    def contend(calls: int, samples: Int64Array, seconds: float) -> int:
        count = one(calls, samples, seconds)
        for index in range(count):
            samples[index] *= TOGETHER
        return count

    return contend
