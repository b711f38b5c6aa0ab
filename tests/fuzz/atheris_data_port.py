"""Fuzzing of the tcp data port in its own process: ``python -m tests.fuzz.atheris_data_port CORPUS -runs=100000``.

The reactor is native and shows no coverage; what it gets is built from the input field by field, and what it must never
touch is looked at after each connection.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

import atheris as untyped_atheris  # type: ignore[import-untyped]
from tests.fuzz.data_port import GENERATION, PAGE, Port

from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, STATUSES, pack_request, unpack_answer

atheris: Any = untyped_atheris  # it ships no types

EDGES = [0, 1, 8, 64, PAGE - 8, PAGE - 1, PAGE, PAGE + 1, 2**32, 2**63 - 1, 2**63, 2**64 - PAGE, 2**64 - 8, 2**64 - 1]


@atheris.instrument_func  # type: ignore[untyped-decorator]
def number_of(provider: Any) -> int:
    """Draw a number that is often near an edge."""
    if provider.ConsumeBool():
        return int(provider.PickValueInList(EDGES))
    return int(provider.ConsumeIntInRange(0, 2**64 - 1))


@atheris.instrument_func  # type: ignore[untyped-decorator]
def request_of(provider: Any) -> bytes:
    """Draw one request with what stands behind its header."""
    operation = provider.ConsumeIntInRange(0, max(OPERATIONS.values()) + 1)
    parts = [(number_of(provider), number_of(provider)) for _ in range(provider.ConsumeIntInRange(0, 4))]
    vector = operation in (OPERATIONS["readv"], OPERATIONS["writev"])
    total = sum(length for _, length in parts) % 2**64
    header = pack_request(
        operation,
        handle=provider.PickValueInList([PORT.handle] * 4 + [PORT.foreign, 63, 64, 2**32 - 1]),
        generation=provider.PickValueInList([GENERATION] * 4 + [GENERATION + 1, 0]),
        offset=number_of(provider),
        length=total if vector and provider.ConsumeBool() else number_of(provider),
        operand=len(parts) if vector and provider.ConsumeBool() else number_of(provider),
    )
    behind = b"".join(struct.pack("<QQ", *part) for part in parts) if vector else b""
    return header + behind + bytes(provider.ConsumeBytes(provider.ConsumeIntInRange(0, 200)))


@atheris.instrument_func  # type: ignore[untyped-decorator]
def note(received: bytes) -> int:
    """Take a branch for each kind of answer, so that inputs which bring a new one are kept."""
    place = kinds = 0
    while len(received) - place >= ANSWER_BYTES:
        answer = unpack_answer(received[place : place + ANSWER_BYTES])
        for status in STATUSES:
            if answer["status"] == status:
                kinds |= 1 << status
        place += ANSWER_BYTES + answer["length"]
    return kinds


def stream_of(data: bytes) -> bytes:
    """Return what an input lets a client send: what is drawn from it, or behind a zero byte the input as it is."""
    if data[:1] == b"\0":
        return data[1:]
    provider = atheris.FuzzedDataProvider(data)
    stream = b"".join(request_of(provider) for _ in range(provider.ConsumeIntInRange(1, 4)))
    return stream + bytes(provider.ConsumeBytes(100))


def one_input(data: bytes) -> None:
    """Let the port take what the input says; bytes outside the slab must stay, and the port must answer the next."""
    note(PORT.take(stream_of(data)))
    PORT.check()
    assert len(PORT.take(b"")) == ANSWER_BYTES


if __name__ == "__main__":
    PORT = Port()
    for number in range(32):
        Path(sys.argv[1], f"seed-{number}").write_bytes(random.Random(number).randbytes(1000))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
