"""One measured row, as programs read it: JSON Lines, one object a line."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["BULK_NBYTES", "PYVERBS_ROWS", "Row", "unavailable"]

BULK_NBYTES = 64 << 10
"""From so many bytes in one call on, a row is compared with its limit by GB/s, below by its p50."""


PYVERBS_ROWS = "rdma/pyverbs"
"""What rows of rdma over the binding pyverbs have for a transport."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation of one size over one transport. A number that was not measured is None."""

    transport: str
    """A transport's name, ``rdma/pyverbs`` for rdma over that binding, or ``control`` for the control plane."""
    op: str
    nbytes: int | None = None
    """Bytes of one part."""
    batch: int | None = None
    """Parts in one call; ``ops_s`` counts parts, ``p50_us`` and ``p99_us`` are of one call."""
    clients: int | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    ops_s: float | None = None
    gb_s: float | None = None
    """1 GB is 1e9 bytes; None for allocations and single words."""
    limit: float | None = None
    """What the limit reached, in ``limit_unit``; None if there is none to run here."""
    ratio: float | None = None
    """Our speed as a fraction of the limit's: higher is better, 1.0 is as fast as the limit."""
    emulated: bool = False
    """The transport's device is stood in for by something else, so that its numbers are not the device's."""
    reason: str = ""
    """Why the transport is not measured here; empty if it is."""
    limit_name: str = ""
    limit_unit: Literal["us", "GB/s", ""] = ""
    server_cpu_s_per_gb: float | None = None
    """CPU time of the server's process per GB moved, for calls of 64 KiB and more."""

    def as_record(self) -> dict[str, Any]:
        """Return the row's fields as JSON takes them, floats to five digits."""
        return {
            name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in asdict(self).items()
        }


def unavailable(transport: str, reason: str) -> Row:
    """Return the row of a transport that cannot be measured here."""
    return Row(transport=transport, op="connect", reason=reason)
