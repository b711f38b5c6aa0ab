"""The control protocol as pure functions: whatever the bytes, a message or a ``ProtocolError``, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import REQUESTS, TREES, bounded, framed

from farpool.protocol.errors import FarpoolError, ProtocolError, from_wire
from farpool.protocol.framing import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_REQUEST_BYTES,
    FrameDecoder,
    decode_payload,
    encode_frame,
)
from farpool.protocol.messages import (
    OPERATIONS,
    Attached,
    Request,
    SlabList,
    Welcome,
    decode_reply_fields,
    decode_request,
    encode_error,
    request_id_of,
)

MOST_BYTES = 48 << 20
"""What decoding one frame may take at its peak: msgpack makes room for what up to 1,024 open arrays announce."""


def decode(data: bytes) -> list[Request]:
    """Decode all that a server would of *data*; only ``ProtocolError`` may come out of it."""
    requests: list[Request] = []
    for payload in FrameDecoder().feed(data):
        message = decode_payload(payload)
        request_id_of(message)
        requests.append(decode_request(message))
    return requests


@bounded(400)
@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(framed)))
def test_any_bytes_are_refused_or_understood(data: bytes) -> None:
    with suppress(ProtocolError):
        decode(data)


@bounded(400)
@given(REQUESTS)
def test_any_tree_is_refused_or_a_request(message: list[Any]) -> None:
    with suppress(ProtocolError):
        (request,) = decode(encode_frame(message))
        assert type(request) is OPERATIONS[message[2]]


@bounded(200)
@given(TREES, st.sampled_from([Welcome, Attached, SlabList]))
def test_any_reply_is_refused_or_understood(fields: Any, cls: type[Any]) -> None:
    with suppress(ProtocolError):
        assert isinstance(decode_reply_fields(cls, fields), cls)


@bounded(200)
@given(
    st.one_of(st.sampled_from(sorted(FarpoolError.kinds)), st.text(max_size=20)),
    st.text(max_size=20),
    st.dictionaries(
        st.one_of(st.sampled_from(["message", "self", "kind", "class", "details"]), st.text(), st.binary()), TREES
    ),
)
def test_any_error_of_a_peer_is_one_of_ours(kind: str, message: str, details: dict[Any, Any]) -> None:
    error = from_wire(kind, message, details)
    assert isinstance(error, FarpoolError)
    assert error.message == message
    assert error.details.keys() == {key for key in details if isinstance(key, str)}
    encode_error(1, error)


@bounded(150)
@given(st.lists(st.binary(max_size=50), max_size=8), st.data())
def test_a_stream_cut_anywhere_is_the_same_stream(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder = FrameDecoder()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[start:end])
    assert found == payloads
    assert decoder.buffered == 0


# Hostile on purpose ------------------------------------------------------------------------------------------------

NOT_MESSAGES: dict[str, bytes] = {
    "arrays in arrays, each announcing more than the frame has": b"\xdc\x10\x00" * 1000,
    "arrays in arrays, at the frame's limit": b"\xdc\x10\x00" * (MAX_FRAME_BYTES // 3),
    "an array that announces more than the limit": b"\xdd\x00\x00\xff\xff" * 1000,
    "maps in maps": b"\xde\x10\x00\xa1a" * 1000,
    "an array that announces 4,294,967,295 items": b"\xdd\xff\xff\xff\xff",
    "a string that announces 4 GiB": b"\x91\xdb\xff\xff\xff\xff",
    "bytes that announce 4 GiB": b"\x91\xc6\xff\xff\xff\xff",
    "an extension": b"\x91\xd4\x05\x00",
    "a timestamp": b"\x91\xd6\xff\x00\x00\x00\x00",
    "a reserved byte": b"\x91\xc1",
    "a map with a number for a key": b"\x91\x81\x01\x02",
    "a map with an array for a key": b"\x91\x81\x90\x02",
    "text that is not UTF-8": b"\x91\xa2\xff\xfe",
    "two messages in one frame": b"\x90\x90",
    "no message": b"",
    "a number": b"\x01",
    "nested as deep as msgpack goes": b"\x91" * 1023 + b"\xc0",
    "nested deeper than msgpack goes": b"\x91" * 100_000 + b"\xc0",
    "nested one level too deep": b"\x91" * (MAX_DEPTH + 2) + b"\xc0",
}


@pytest.mark.parametrize("payload", NOT_MESSAGES.values(), ids=NOT_MESSAGES)
def test_hostile_payload_is_refused_in_little_memory(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_payload(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES


@pytest.mark.parametrize("empty", [b"\x80", b"\x90"], ids=["maps", "arrays"])
def test_a_request_full_of_empty_containers_takes_little_memory(empty: bytes) -> None:
    payload = b"\x9f" + (b"\xdc\x10\x00" + empty * 4096) * 15
    assert len(payload) < MAX_REQUEST_BYTES
    tracemalloc.start()
    try:
        decode_payload(payload)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * len(payload)


def test_a_frame_over_the_limit_is_refused_from_its_length_alone() -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolError, match=str(MAX_FRAME_BYTES)):
        decoder.feed(struct.pack("<I", MAX_FRAME_BYTES + 1))
    assert decoder.buffered <= 4


def test_deep_values_of_an_array_in_a_map_are_counted() -> None:
    value: Any = 0
    for _ in range(MAX_DEPTH):
        value = {"a": [value]}
    with pytest.raises(ProtocolError, match="deeper"):
        decode_payload(encode_frame([value])[4:])


def test_the_decoder_keeps_no_more_than_one_frame() -> None:
    decoder = FrameDecoder()
    decoder.feed(MAX_FRAME_BYTES.to_bytes(4, "little") + bytes(MAX_FRAME_BYTES - 1))
    assert decoder.buffered == MAX_FRAME_BYTES + 3
    (payload,) = decoder.feed(b"\0\x01")
    assert len(payload) == MAX_FRAME_BYTES
    assert decoder.buffered == 1
