"""What ``put`` and ``get`` share: the size of a step, and what is said of a transfer in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from farpool.cli.output import one_line, print_record
from farpool.protocol.units import format_bytes

__all__ = ["CHUNK_NBYTES", "Transfer"]

CHUNK_NBYTES = 8 << 20
"""Bytes moved in one go: large enough for full speed, small enough for a smooth progress bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One file that went into a slab or came out of it; ``crc32c`` is None if nothing was there to verify."""

    op: Literal["put", "get"]
    id: int
    name: str | None
    nbytes: int
    crc32c: str | None
    transport: str
    seconds: float

    def report(self, *, as_json: bool) -> None:
        """Print it as one line."""
        speed = self.nbytes / max(self.seconds, 1e-9) / 1e9
        if as_json:
            print_record(asdict(self) | {"gb_s": round(speed, 3)})
            return
        label = one_line(self.name or f"slab {self.id}")
        checksum = "no checksum" if self.crc32c is None else f"crc32c {self.crc32c}"
        moved = f"{format_bytes(self.nbytes)} over {self.transport} in {self.seconds:.2f} s"
        print(f"{self.op} {label}: {moved}, {speed:.2f} GB/s, {checksum}")
