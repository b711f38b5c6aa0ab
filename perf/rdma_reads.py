"""``rdma``: reads beside perftest's programs and bare verbs on the same port, over each verbs binding that is there."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Final

import farpool
from farpool import InvalidArgument, Pool, TransportUnavailable
from farpool.perf.emulation import is_emulated
from farpool.perf.limit_contenders import ReadLimits, VerbsLimits
from farpool.perf.measurement import measure
from farpool.perf.perftest import PerftestLimits, is_installed
from farpool.perf.placement import apart_from
from farpool.perf.quick import CALL_SECONDS, PYVERBS, RDMA, Progress, bare_verbs, has_pyverbs, with_binding
from farpool.perf.rdma_port import RdmaPort, find_port
from farpool.perf.rows import PYVERBS_ROWS, Row, unavailable
from farpool.perf.walk import SLAB_NBYTES
from farpool.perf.workloads import Workload, read_workload, readv_workload

__all__ = ["run"]

READ_NBYTES: Final = 64
BATCH: Final = 32
BATCH_NBYTES: Final = (64, 4 << 10)
BULK: Final = 16
BULK_NBYTES: Final = 64 << 10


def run(url: str | None = None, seconds: float = 1.0, progress: Progress | None = None) -> Generator[Row]:
    """Measure reads of the pool at *url*, which must be on this host; yield each row as it is done.

    *seconds* bounds each measurement, once for us and once for its limit.

    Raises:
        ServerLost, DeadlineExceeded, PoolFull: the server is not there, or has no room for 32 MiB.
    """
    port = find_port()
    if port is None:
        yield unavailable(RDMA, "no RDMA port of this host is active and has an address; see: farpool doctor")
        return
    reached = yield from _measure_binding(url, RDMA, port, seconds, progress)
    if reached is not None and has_pyverbs():
        yield from _measure_binding(with_binding(reached, PYVERBS), PYVERBS_ROWS, port, seconds, progress)


def _measure_binding(
    url: str | None, name: str, port: RdmaPort, seconds: float, progress: Progress | None
) -> Generator[Row, None, str | None]:
    """Yield the rows called *name*; return the pool's address if it can be used over rdma here."""
    try:
        pool = farpool.connect(url, transport=RDMA, timeout=CALL_SECONDS)
    except (TransportUnavailable, InvalidArgument) as error:
        yield unavailable(name, error.message)
        return None
    with pool, apart_from(pool.stat().pid):
        yield from _measure(pool, name, port, seconds, progress)
        return pool.url


def _measure(pool: Pool, name: str, port: RdmaPort, seconds: float, progress: Progress | None) -> Iterator[Row]:
    emulated = is_emulated(RDMA, pool.stat().arena)
    with closing(bare_verbs(port)) as bare:
        limits: list[ReadLimits] = [VerbsLimits(bare)]
        if is_installed():
            limits.insert(0, PerftestLimits(port))
        for workload in _workloads(pool, limits):
            if progress is not None:
                progress(f"{name}: {workload} beside {workload.limit.name}")
            yield measure(workload, seconds, transport=name, emulated=emulated)


def _workloads(pool: Pool, limits: list[ReadLimits]) -> Iterator[Workload]:
    """Make the workloads; perftest posts no chains of small reads, so the last limit alone is theirs."""
    slab = pool.allocate(SLAB_NBYTES)
    slab.write(bytes(SLAB_NBYTES))  # every page is there before anything is timed
    for limit in limits:
        yield read_workload(slab.read_into, limit, READ_NBYTES)
    for nbytes in BATCH_NBYTES:
        yield readv_workload(slab.readv, limits[-1], nbytes, BATCH)
    for limit in limits:
        yield readv_workload(slab.readv, limit, BULK_NBYTES, BULK)
    slab.free()
