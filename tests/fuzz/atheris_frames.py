"""Coverage-guided fuzzing of a stream of frames: ``python -m tests.fuzz.atheris_frames CORPUS -runs=100000``."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["farpool.protocol"]):  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    from farpool.protocol.errors import ProtocolError
    from farpool.protocol.framing import MAX_REQUEST_BYTES, FrameDecoder, decode_payload
    from farpool.protocol.messages import Hello, Stat, decode_request, encode_request, request_id_of

SEEDS = [encode_request(1, Hello(protocol=1, client="x")), encode_request(2, Stat()) * 2, b"\xff\xff\xff\xff"]


def one_input(data: bytes) -> None:
    """Cut the stream where its first byte says, and decode all that comes out; only ``ProtocolError`` may escape."""
    decoder = FrameDecoder(MAX_REQUEST_BYTES)
    cut = data[0] if data else 0
    try:
        for payload in [*decoder.feed(data[1:cut]), *decoder.feed(data[max(cut, 1) :])]:
            message = decode_payload(payload)
            request_id_of(message)
            decode_request(message)
    except ProtocolError:
        return
    assert decoder.buffered <= len(data)


if __name__ == "__main__":
    for number, seed in enumerate(SEEDS):
        Path(sys.argv[1], f"seed-{number}").write_bytes(b"\x05" + seed)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
