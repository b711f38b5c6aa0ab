"""One workload and its limit, measured in turns and made a row."""

from __future__ import annotations

from collections.abc import Callable

from farpool.perf.rounds import Speed, alternate
from farpool.perf.rows import Row
from farpool.perf.workloads import Workload

__all__ = ["measure"]


def measure(
    workload: Workload,
    seconds: float,
    *,
    transport: str,
    emulated: bool,
    cpu_seconds: Callable[[], float] | None = None,
) -> Row:
    """Measure for *seconds* and as long again for the limit. *cpu_seconds* tells what the server has used so far."""
    cpu_before = cpu_seconds() if cpu_seconds is not None else 0.0
    ours, limit = alternate(workload.ours, workload.limit.run, seconds)
    cpu = cpu_seconds() - cpu_before if cpu_seconds is not None else None
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
        emulated=emulated,
        limit_name=workload.limit.name,
        limit_unit="" if limit is None else "GB/s" if workload.is_bulk else "us",
        server_cpu_s_per_gb=_cpu_of(workload, ours, cpu),
    )


def _cpu_of(workload: Workload, ours: Speed, cpu: float | None) -> float | None:
    if cpu is None or not workload.is_bulk:
        return None
    return cpu / (ours.calls * workload.call_nbytes / 1e9)


def _gb_s(workload: Workload, speed: Speed) -> float:
    return speed.calls_s * workload.call_nbytes / 1e9


def _compare(workload: Workload, ours: Speed, limit: Speed | None) -> tuple[float | None, float | None]:
    """Return what the limit reached, and our speed as a fraction of it."""
    if limit is None:
        return None, None
    if workload.is_bulk:
        return _gb_s(workload, limit), ours.calls_s / limit.calls_s
    return limit.p50_us, limit.p50_us / ours.p50_us
