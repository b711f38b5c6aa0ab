"""Coverage-guided fuzzing of one message, either way: ``python -m tests.fuzz.atheris_messages CORPUS -runs=100000``."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["farpool.protocol"]):  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
    from farpool.protocol.errors import FarpoolError, PoolFull, ProtocolError, from_wire
    from farpool.protocol.framing import decode_payload
    from farpool.protocol.messages import (
        OPERATIONS,
        Allocate,
        Attach,
        Challenge,
        Hello,
        Listing,
        Open,
        ResumeKey,
        SlabInfo,
        SlabList,
        TenantAdd,
        decode_reply_fields,
        decode_request,
        encode_error,
        encode_reply,
        encode_request,
        request_id_of,
    )

REPLIES = sorted({cls.reply for cls in OPERATIONS.values()}, key=lambda cls: cls.__name__)
FRAMES = [
    encode_request(1, Hello(protocol=1, client="x", resume=ResumeKey(session=1, secret=bytes(32)))),
    encode_request(2, Allocate(nbytes=4096, name="weights", lease=2.5, transport="tcp")),
    encode_request(3, Open(id=7, mode="r", transport="cxl")),
    encode_request(4, Attach(id=7, generation=8, transport="tcp")),
    encode_request(5, Listing(after=3)),
    encode_request(8, Challenge(tenant="alice", nonce=bytes(32))),
    encode_request(9, Hello(protocol=1, client="x", tenant="alice", proof=bytes(32))),
    encode_request(10, TenantAdd(tenant="alice", verifier=bytes(64))),
    encode_reply(6, SlabList(slabs=[SlabInfo(id=1, generation=2, nbytes=3, tenant="default", expires_in=0.5)])),
    encode_error(7, PoolFull("full", asked=1, free=0)),
]


def one_input(data: bytes) -> None:
    """Decode a payload as a server would, then as a client would; only ``ProtocolError`` may escape."""
    try:
        message = decode_payload(data)
    except ProtocolError:
        return
    with suppress(ProtocolError):
        request_id_of(message)
        assert type(decode_request(message)) is OPERATIONS[message[2]]
    for cls in REPLIES:
        with suppress(ProtocolError):
            decode_reply_fields(cls, message[-1] if message else None)
    details: Any = message[4] if len(message) == 5 else None
    if hasattr(details, "items"):
        assert isinstance(from_wire(str(message[2]), str(message[3]), details), FarpoolError)


if __name__ == "__main__":
    for number, frame in enumerate(FRAMES):
        Path(sys.argv[1], f"seed-{number}").write_bytes(frame[4:])
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
