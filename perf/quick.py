"""``quick``: one client, each transport's usual operations and sizes beside their limits, in 20 s."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import farpool
from farpool import InvalidArgument, NotMappable, Pool, Slab, TransportUnavailable
from farpool.perf.emulation import is_emulated
from farpool.perf.limit_contenders import MappingLimits, NoLimits, SocketLimits, VerbsLimits
from farpool.perf.measurement import measure
from farpool.perf.placement import apart_from, cpus_of
from farpool.perf.raw_socket import RawSocket
from farpool.perf.rdma_port import RdmaPort, find_port
from farpool.perf.rows import PYVERBS_ROWS, Row, unavailable
from farpool.perf.walk import SLAB_NBYTES
from farpool.perf.workloads import Workload, allocation_workload, data_workloads, numpy_workload

if TYPE_CHECKING:
    from farpool.native.verbs_limits import BareVerbs

__all__ = [
    "CALL_SECONDS",
    "MOST_SECONDS",
    "PYVERBS",
    "RDMA",
    "TRANSPORTS",
    "Progress",
    "bare_verbs",
    "check_seconds",
    "has_pyverbs",
    "run",
    "with_binding",
]

TRANSPORTS: Final = ("cxl", "tcp", "rdma")
CONTROL: Final = "control"
MOST_SECONDS: Final = 60.0
"""Longest time of one measurement: a round is a fifth of it, and loops in C see Ctrl-C only at its end."""
CALL_SECONDS: Final = 60.0
"""Deadline of each call: an emulated device zeroes a slab at some MB/s."""
RDMA: Final = "rdma"
PYVERBS: Final = "pyverbs"
"""The other verbs binding: rows of its own show what a binding costs."""
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
    check_seconds(seconds)
    tell = progress or _tell_nobody
    tell(f"{CONTROL}: allocate+free")
    with farpool.connect(url, timeout=CALL_SECONDS) as pool, apart_from(pool.stat().pid):
        emulated = is_emulated(CONTROL, pool.stat().arena)
        yield measure(allocation_workload(pool), seconds, transport=CONTROL, emulated=emulated)
        for transport in transports:
            usable = yield from _measure_transport(url, transport, transport, seconds, tell)
            if transport == RDMA and usable and has_pyverbs():
                yield from _measure_transport(with_binding(pool.url, PYVERBS), RDMA, PYVERBS_ROWS, seconds, tell)


def check_seconds(seconds: float) -> None:
    """Raise ``InvalidArgument`` for a measurement that would take no time, or too long."""
    if not 0 < seconds <= MOST_SECONDS:
        raise InvalidArgument(f"a measurement takes over 0 and at most {MOST_SECONDS:.0f} s, not {seconds!r}")


def has_pyverbs() -> bool:
    """Tell whether the package is there; the transport says more if it cannot be used."""
    return find_spec(PYVERBS) is not None


def with_binding(url: str, verbs: str) -> str:
    """Return the address with a verbs binding chosen."""
    return f"{url}{'&' if urlsplit(url).query else '?'}verbs={verbs}"


def _measure_transport(
    url: str | None, transport: str, name: str, seconds: float, tell: Progress
) -> Generator[Row, None, bool]:
    """Yield the rows called *name*; return whether the transport can be used here."""
    tell(name)
    try:
        pool = farpool.connect(url, transport=transport, timeout=CALL_SECONDS)
    except (TransportUnavailable, InvalidArgument) as error:
        yield unavailable(name, error.message)
        return False
    with pool:
        yield from _measure_workloads(pool, name, seconds, tell)
    return True


def _measure_workloads(pool: Pool, name: str, seconds: float, tell: Progress) -> Iterator[Row]:
    """Measure each in turn. What holds views of the slab ends with this, so that the pool can let it go."""
    emulated = is_emulated(pool.transport, pool.stat().arena)
    if pool.transport in SOCKETS and urlsplit(pool.url).scheme == "farpools":
        name = f"{name}+tls"
    with closing(_workloads(pool)) as workloads:
        for workload in workloads:
            tell(f"{name}: {workload}")
            row = measure(
                workload, seconds, transport=name, emulated=emulated, cpu_seconds=lambda: pool.stat().cpu_seconds
            )
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
        with closing(bare_verbs(port)) as bare:
            yield from data_workloads(slab, VerbsLimits(bare))
    elif pool.transport in SOCKETS and _is_on_this_host(pool.url):
        with RawSocket(cpus_of(pool.stat().pid)) as raw:
            yield from data_workloads(slab, SocketLimits(raw))
    else:
        yield from data_workloads(slab, NoLimits())


def bare_verbs(port: RdmaPort) -> BareVerbs:
    """Return two connected queue pairs of the port, for the limit."""
    # Not at the top: builds without libibverbs-dev have no such module, and no rdma to measure either.
    from farpool.native.verbs_limits import BareVerbs  # noqa: PLC0415

    return BareVerbs(port.device, port.port, port.gid_index, SLAB_NBYTES)


def _memory_of(slab: Slab) -> memoryview | None:
    try:
        return slab.view()
    except NotMappable:
        return None


def _is_on_this_host(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "unix" or parts.hostname in LOOPBACK
