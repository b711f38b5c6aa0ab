"""``farpool perf limits``: every bound in turn, on a server of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable

import farpool
from farpool import Pool
from farpool.perf.bounds import Bound, Outcome, judge
from farpool.perf.control_bounds import control_bounds
from farpool.perf.emulation import is_emulated
from farpool.perf.mapped_bounds import mapped_bounds
from farpool.perf.placement import cpus_of, placed
from farpool.perf.quick import CALL_SECONDS, Progress, check_seconds
from farpool.perf.raw_socket import RawSocket
from farpool.perf.socket_bounds import bulk_bounds, small_bounds
from farpool.perf.walk import SLAB_NBYTES

__all__ = ["run"]


def run(seconds: float = 1.0, tell: Progress = lambda _: None) -> Generator[Outcome]:
    """Judge each bound for *seconds* a side; yield each outcome as it is there. ``tell`` hears what is next.

    The processors that this process may use are shared out: both ends on one, and where there are several, on two.

    Raises:
        InvalidArgument: *seconds* not above 0 and at most 60.
        PoolFull: there is no room for a pool of 64 MiB.
    """
    check_seconds(seconds)
    cpus = sorted(cpus_of(0))
    with farpool.serve_embedded(capacity=2 * SLAB_NBYTES, transports=["cxl", "tcp"]) as server:
        for transport in ("cxl", "tcp"):
            with farpool.connect(server.url, transport=transport, timeout=CALL_SECONDS) as pool:
                bounds = _mapped if transport == "cxl" else _remote
                yield from bounds(pool, server.pid, cpus, seconds, tell)


def _judged(bounds: Iterable[Bound], seconds: float, tell: Progress, *, emulated: bool) -> Generator[Outcome]:
    for bound in bounds:
        tell(bound.what)
        yield judge(bound, seconds, emulated=emulated)


def _mapped(pool: Pool, server: int, cpus: list[int], seconds: float, tell: Progress) -> Generator[Outcome]:
    slab = pool.allocate(SLAB_NBYTES)
    slab.write(bytes(SLAB_NBYTES))  # every page is there before anything is timed
    memory = slab.view()
    emulated = is_emulated(pool.transport, pool.stat().arena)
    with placed(cpus[-1:], cpus[:1], [server]):
        yield from _judged(mapped_bounds(slab, memory), seconds, tell, emulated=emulated)


def _remote(pool: Pool, server: int, cpus: list[int], seconds: float, tell: Progress) -> Generator[Outcome]:
    slab = pool.allocate(SLAB_NBYTES)
    slab.write(bytes(SLAB_NBYTES))
    emulated = is_emulated(pool.transport, pool.stat().arena)
    ends = [("1 cpu", cpus[-1:], cpus[-1:])]
    if len(cpus) > 1:
        ends.append(("2 cpus", cpus[-1:], cpus[:1]))
    with RawSocket() as raw:
        others = [server, raw.pid]
        for where, ours, theirs in ends:
            with placed(ours, theirs, others):
                yield from _judged(small_bounds(slab, raw, where), seconds, tell, emulated=emulated)
                if where == ends[0][0]:
                    yield from _judged(control_bounds(pool), seconds, tell, emulated=emulated)
                if where == ends[-1][0]:
                    yield from _judged(bulk_bounds(slab, raw), seconds, tell, emulated=emulated)
