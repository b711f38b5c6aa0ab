"""``quick``: one client, each transport's usual operations and sizes beside their limits, in 20 s."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import farpool
from farpool import InvalidArgument, NotMappable, Pool, Slab, TransportUnavailable
from farpool.perf.limit_contenders import MappingLimits, NoLimits, SocketLimits, VerbsLimits
from farpool.perf.placement import apart_from, cpus_of
from farpool.perf.raw_socket import RawSocket
from farpool.perf.rdma_port import RdmaPort, find_port
from farpool.perf.rounds import Speed, alternate
from farpool.perf.rows import Row, unavailable
from farpool.perf.walk import SLAB_NBYTES
from farpool.perf.workloads import Workload, allocation_workload, data_workloads, numpy_workload

if TYPE_CHECKING:
    from farpool.native.verbs_limits import BareVerbs

__all__ = ["MOST_SECONDS", "TRANSPORTS", "Progress", "run"]

TRANSPORTS: Final = ("cxl", "tcp", "rdma")
CONTROL: Final = "control"
MOST_SECONDS: Final = 60.0
"""Longest time of one measurement: a round is a fifth of it, and loops in C see Ctrl-C only at its end."""
EMULATED: Final = frozenset({"cxl"})
"""Arenas are directories of memory files so far: cxl runs on shared memory of this host, not on a device."""
RDMA: Final = "rdma"
SOCKETS: Final = frozenset({"tcp"})
"""Transports whose limit is a raw TCP connection."""
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

Progress = Callable[[str], None]


def run(
    url: str | None = None,
    transports: Sequence[str] = TRANSPORTS,
    seconds: float = 0.25,
    progress: Progress | None = None,
) -> Generator[Row]:
    """Measure the pool at *url*; yield each row as it is done. ``progress`` is told what is measured next.

    *seconds* bounds each measurement, once for us and once for its limit. A transport that cannot be used
    here is one row with its reason. A server on another host has no limit over sockets: this host's
    loopback is not its wire.

    Raises:
        InvalidArgument: *seconds* not above 0 and at most 60, or an address that cannot be.
        ServerLost, DeadlineExceeded, PoolFull: the server is not there, or has no room for 32 MiB.
    """
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidArgument(f"a measurement takes over 0 and at most {MOST_SECONDS:.0f} s, not {seconds!r}")
    tell = progress or _tell_nobody
    tell(f"{CONTROL}: allocate+free")
    with farpool.connect(url) as pool, apart_from(pool.stat().pid):
        yield _measure(pool, CONTROL, allocation_workload(pool), seconds)
        for transport in transports:
            yield from _measure_transport(url, transport, seconds, tell)


def _measure_transport(url: str | None, transport: str, seconds: float, tell: Progress) -> Iterator[Row]:
    tell(transport)
    try:
        pool = farpool.connect(url, transport=transport)
    except (TransportUnavailable, InvalidArgument) as error:
        yield unavailable(transport, error.message)
        return
    with pool:
        yield from _measure_workloads(pool, transport, seconds, tell)


def _measure_workloads(pool: Pool, transport: str, seconds: float, tell: Progress) -> Iterator[Row]:
    """Measure each in turn. What holds views of the slab ends with this, so that the pool can let it go."""
    if transport in SOCKETS and urlsplit(pool.url).scheme == "farpools":
        transport = f"{transport}+tls"
    with closing(_workloads(pool)) as workloads:
        for workload in workloads:
            tell(f"{transport}: {workload}")
            row = _measure(pool, transport, workload, seconds)
            del workload
            yield row


def _tell_nobody(text: str) -> None:
    pass


def _workloads(pool: Pool) -> Generator[Workload]:
    """Make a slab and the workloads on it, each when it is its turn."""
    slab = pool.allocate(SLAB_NBYTES)
    slab.write(bytes(SLAB_NBYTES))  # every page is there, on both sides, before anything is timed
    memory = _memory_of(slab)
    if memory is not None:
        yield numpy_workload(slab, memory)
        yield from data_workloads(slab, MappingLimits(memory))
    elif pool.transport == RDMA and _is_on_this_host(pool.url) and (port := find_port()) is not None:
        with closing(_bare_verbs(port)) as bare:
            yield from data_workloads(slab, VerbsLimits(bare))
    elif pool.transport in SOCKETS and _is_on_this_host(pool.url):
        with RawSocket(cpus_of(pool.stat().pid)) as raw:
            yield from data_workloads(slab, SocketLimits(raw))
    else:
        yield from data_workloads(slab, NoLimits())


def _bare_verbs(port: RdmaPort) -> BareVerbs:
    # Not at the top: builds without libibverbs-dev have no such module, and no rdma to measure either.
    from farpool.native.verbs_limits import BareVerbs  # noqa: PLC0415

    return BareVerbs(port.device, port.port, port.gid_index, SLAB_NBYTES)


def _is_emulated(transport: str) -> bool:
    """Tell whether the figures say nothing about hardware: shared memory for cxl, soft-RoCE for rdma."""
    port = find_port() if transport == RDMA else None
    return transport in EMULATED or (port is not None and port.emulated)


def _memory_of(slab: Slab) -> memoryview | None:
    try:
        return slab.view()
    except NotMappable:
        return None


def _is_on_this_host(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "unix" or parts.hostname in LOOPBACK


def _measure(pool: Pool, transport: str, workload: Workload, seconds: float) -> Row:
    cpu_before = pool.stat().cpu_seconds
    ours, limit = alternate(workload.ours, workload.limit.run, seconds)
    cpu_seconds = pool.stat().cpu_seconds - cpu_before
    moved_gb = ours.calls * workload.call_nbytes / 1e9
    reached, ratio = _compare(workload, ours, limit)
    return Row(
        transport=transport,
        op=workload.op,
        nbytes=workload.nbytes,
        batch=workload.batch,
        clients=1,
        p50_us=ours.p50_us,
        p99_us=ours.p99_us,
        ops_s=ours.calls_s * workload.batch,
        gb_s=_gb_s(workload, ours) if workload.moves_bytes else None,
        limit=reached,
        ratio=ratio,
        emulated=_is_emulated(transport),
        limit_name=workload.limit.name,
        limit_unit="" if limit is None else "GB/s" if workload.is_bulk else "us",
        server_cpu_s_per_gb=cpu_seconds / moved_gb if workload.is_bulk else None,
    )


def _gb_s(workload: Workload, speed: Speed) -> float:
    return speed.calls_s * workload.call_nbytes / 1e9


def _compare(workload: Workload, ours: Speed, limit: Speed | None) -> tuple[float | None, float | None]:
    """Return what the limit reached, and our speed as a fraction of it."""
    if limit is None:
        return None, None
    if workload.is_bulk:
        return _gb_s(workload, limit), ours.calls_s / limit.calls_s
    return limit.p50_us, limit.p50_us / ours.p50_us
