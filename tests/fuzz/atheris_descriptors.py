"""Coverage-guided fuzzing of cxl's packets: ``python -m tests.fuzz.atheris_descriptors CORPUS -runs=100000``."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["farpool.transports.cxl.descriptors"]):  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    from farpool.protocol.errors import ProtocolError
    from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest

SEEDS = [
    DescriptorRequest(session=1, secret=bytes(range(32)), slab=2, generation=3, writable=True).encode(),
    DescriptorAnswer(status=1, arena=bytes(16)).encode(),
]


def one_input(data: bytes) -> None:
    """Decode a packet as either side would; only ``ProtocolError`` may escape."""
    for kind in (DescriptorRequest, DescriptorAnswer):
        try:
            packet = kind.decode(data)
        except ProtocolError:
            continue
        assert kind.decode(packet.encode()) == packet


if __name__ == "__main__":
    for number, seed in enumerate(SEEDS):
        Path(sys.argv[1], f"seed-{number}").write_bytes(seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
