"""``posting``: what small operations of rdma cost up to the device's doorbell. It needs no device.

A provider that completes at once stands in for one. The limit is a C loop that builds, posts and polls the same work
requests over the same provider; what is left are our checks, the GIL, and the staging copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from farpool.perf.limit_contenders import VerbsLimits
from farpool.perf.measurement import measure
from farpool.perf.rounds import in_python
from farpool.perf.rows import Row, unavailable
from farpool.perf.walk import NEAR_NBYTES, filled, places
from farpool.perf.workloads import Workload, read_workload, readv_workload

__all__ = ["NAME", "run"]

NAME: Final = "rdma/none"
"""Stands for a transport in the rows: rdma without a device."""
SMALL_NBYTES: Final = 64
BATCH: Final = 32
WORD_NBYTES: Final = 8


def run(seconds: float = 0.25) -> Iterator[Row]:
    """Measure each operation for *seconds*, and its limit for as long."""
    try:
        from farpool.native.verbs_stub import instant_region, instant_verbs  # noqa: PLC0415  not in every build
    except ImportError as error:
        yield unavailable(NAME, f"this build has no rdma ({error}); install libibverbs-dev, then: make build")
        return
    region, limits = instant_region(NEAR_NBYTES), VerbsLimits(instant_verbs(NEAR_NBYTES))
    offsets, source = places(SMALL_NBYTES), filled(SMALL_NBYTES)

    def write(block: Sequence[int]) -> None:
        for offset in block:
            region.write(source, offset)

    def load(block: Sequence[int]) -> None:
        for offset in block:
            region.load(offset)

    workloads = (
        read_workload(region.read_into, limits, SMALL_NBYTES),
        Workload(
            "write", SMALL_NBYTES, in_python(write, offsets.tolist()), limits.write(offsets, source, SMALL_NBYTES)
        ),
        Workload("load", WORD_NBYTES, in_python(load, offsets.tolist()), limits.load(offsets), moves_bytes=False),
        readv_workload(region.readv, limits, SMALL_NBYTES, BATCH),
    )
    for workload in workloads:
        yield measure(workload, seconds, transport=NAME, emulated=True)
