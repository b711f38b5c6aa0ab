"""Frames and messages: whatever is encoded comes back, in whatever pieces it arrives, and limits hold to the byte."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.profile import PROFILE

from farpool.protocol import messages
from farpool.protocol.errors import FarpoolError, ProtocolError, from_wire
from farpool.protocol.framing import (
    LENGTH_BYTES,
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_ITEMS,
    MAX_STRING_BYTES,
    FrameDecoder,
    decode_payload,
    encode_frame,
)
from farpool.protocol.messages import (
    OPERATIONS,
    Reply,
    Request,
    decode_reply_fields,
    decode_request,
    encode_error,
    encode_event,
    encode_reply,
    encode_request,
)

cases = settings(PROFILE, max_examples=60)
ids = st.integers(0, 2**64 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | text
trees = st.recursive(
    scalars | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
lists = st.lists(trees, max_size=6)


def known_classes(base: type[Any]) -> list[type[Any]]:
    found = [getattr(messages, name) for name in messages.__all__]
    return sorted(
        {cls for cls in found if isinstance(cls, type) and issubclass(cls, base) and cls is not base}, key=repr
    )


@st.composite
def instances(draw: st.DrawFn, base: type[Any]) -> Any:
    """Return a message of any class, with any values that its fields take."""
    cls = draw(st.sampled_from(known_classes(base)))
    return draw(values_of(msgspec.inspect.type_info(cls)))


SIMPLE: dict[type[Any], st.SearchStrategy[Any]] = {
    msgspec.inspect.AnyType: scalars,
    msgspec.inspect.BoolType: st.booleans(),
    msgspec.inspect.BytesType: st.binary(max_size=40),
    msgspec.inspect.FloatType: st.floats(allow_nan=False),
    msgspec.inspect.IntType: ids,
    msgspec.inspect.NoneType: st.none(),
    msgspec.inspect.StrType: text,
}


def values_of(info: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Return what a field of this type may hold."""
    match info:
        case msgspec.inspect.StructType():
            return st.builds(info.cls, **{field.name: values_of(field.type) for field in info.fields})
        case msgspec.inspect.ListType():
            return st.lists(values_of(info.item_type), max_size=3)
        case msgspec.inspect.TupleType():
            return st.tuples(*(values_of(each) for each in info.item_types))
        case msgspec.inspect.DictType():
            return st.dictionaries(text, values_of(info.value_type), max_size=3)
        case msgspec.inspect.UnionType():
            return st.one_of([values_of(each) for each in info.types])
        case msgspec.inspect.IntType(ge=int(least), lt=int(end)):
            return st.integers(least, end - 1)
        case msgspec.inspect.FloatType(gt=float() | int() as least, le=float() | int() as most):
            return st.floats(least, most, exclude_min=True)
        case _:
            return SIMPLE[type(info)]


def payload_of(frame: bytes) -> list[Any]:
    (payload,) = FrameDecoder().feed(frame)
    return decode_payload(payload)


# Frames -----------------------------------------------------------------------------------------------------


@cases
@given(message=lists)
def test_frame_comes_back(message: list[Any]) -> None:
    frame = encode_frame(message)
    assert struct.unpack_from("<I", frame)[0] == len(frame) - LENGTH_BYTES
    assert payload_of(frame) == message


@cases
@given(stream=st.lists(lists, max_size=6), cuts=st.lists(st.integers(0, 400), max_size=12))
def test_stream_comes_back_in_any_pieces(stream: list[list[Any]], cuts: list[int]) -> None:
    whole = b"".join(encode_frame(message) for message in stream)
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    decoder, seen = FrameDecoder(), list[bytes]()
    for start, end in itertools.pairwise(edges):
        seen += decoder.feed(memoryview(whole)[start:end])
        assert decoder.buffered <= end
    assert [decode_payload(payload) for payload in seen] == stream
    assert decoder.buffered == 0


@cases
@given(over=st.integers(1, 2**32 - 1 - MAX_FRAME_BYTES), before=lists)
def test_frame_over_the_limit_is_refused_at_its_length(over: int, before: list[Any]) -> None:
    decoder = FrameDecoder()
    assert len(decoder.feed(encode_frame(before))) == 1
    with pytest.raises(ProtocolError, match="limit"):
        decoder.feed(struct.pack("<I", MAX_FRAME_BYTES + over))
    assert decoder.buffered <= LENGTH_BYTES


@pytest.mark.parametrize("limit", [0, 1, 100])
def test_limit_to_the_byte(limit: int) -> None:
    assert FrameDecoder(limit).feed(struct.pack("<I", limit) + b"x" * limit) == [b"x" * limit]
    with pytest.raises(ProtocolError):
        FrameDecoder(limit).feed(struct.pack("<I", limit + 1))


def test_limits_of_what_a_frame_holds() -> None:
    for most in (["s" * MAX_STRING_BYTES], [b"s" * MAX_STRING_BYTES], [[None] * MAX_ITEMS]):
        assert payload_of(encode_frame(most)) == most
    for over in (
        ["s" * (MAX_STRING_BYTES + 1)],
        [b"s" * (MAX_STRING_BYTES + 1)],
        [[None] * (MAX_ITEMS + 1)],
        [{str(key): None for key in range(MAX_ITEMS + 1)}],
    ):
        with pytest.raises(ProtocolError):
            payload_of(encode_frame(over))
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_frame([b"x" * MAX_FRAME_BYTES])


@cases
@given(depth=st.integers(1, 3 * MAX_DEPTH), maps=st.booleans())
def test_nesting(depth: int, maps: bool) -> None:
    message: Any = None
    for _ in range(depth):
        message = {"inner": message} if maps else [message]
    frame = encode_frame([message])
    if depth <= MAX_DEPTH:
        assert payload_of(frame) == [message]
    else:
        with pytest.raises(ProtocolError, match="deeper"):
            payload_of(frame)


@cases
@given(value=scalars | st.dictionaries(text, scalars, max_size=2))
def test_payload_is_an_array(value: Any) -> None:
    payload = encode_frame([value])[LENGTH_BYTES + 1 :]  # without the one byte that makes it an array
    with pytest.raises(ProtocolError, match="not an array"):
        decode_payload(payload)


@cases
@given(value=st.sampled_from([2**64, -(2**63) - 1, object(), "\ud800", {1, 2}]))
def test_what_msgpack_cannot_say(value: Any) -> None:
    with pytest.raises(ProtocolError, match="cannot encode"):
        encode_frame([value])


# Messages ---------------------------------------------------------------------------------------------------


@cases
@given(request_id=ids, request=instances(Request))
def test_request_comes_back(request_id: int, request: Request) -> None:
    message = payload_of(encode_request(request_id, request))
    assert message[:3] == [messages.REQUEST, request_id, request.operation]
    assert messages.request_id_of(message) == request_id
    assert decode_request(message) == request
    assert OPERATIONS[request.operation] is type(request)


@cases
@given(request_id=ids, reply=instances(Reply))
def test_reply_comes_back(request_id: int, reply: Reply) -> None:
    kind, seen, fields = payload_of(encode_reply(request_id, reply))
    assert (kind, seen) == (messages.REPLY, request_id)
    assert decode_reply_fields(type(reply), fields) == reply
    assert decode_reply_fields(type(reply), {**fields, "of a newer peer": 1}) == reply


@cases
@given(
    request_id=ids,
    kind=st.sampled_from(sorted(FarpoolError.kinds)),
    words=text,
    details=st.dictionaries(st.sampled_from(["asked", "free", "limit"]), st.integers(0, 2**63)),
)
def test_error_comes_back_as_its_class(request_id: int, kind: str, words: str, details: dict[str, int]) -> None:
    error = FarpoolError.kinds[kind](words, **details)
    tag, seen, name, message, numbers = payload_of(encode_error(request_id, error))
    assert (tag, seen) == (messages.ERROR, request_id)
    again = from_wire(name, message, numbers)
    assert (type(again), again.message, again.details) == (type(error), words, details)


@cases
@given(kind=text, fields=st.dictionaries(st.from_regex(r"[a-jl-z]{1,8}", fullmatch=True), scalars, max_size=3))
def test_event_comes_back(kind: str, fields: dict[str, Any]) -> None:
    assert payload_of(encode_event(kind, **fields)) == [messages.EVENT, kind, fields]


@cases
@given(operation=trees.filter(lambda value: not isinstance(value, str) or value not in OPERATIONS))
def test_unknown_operation(operation: Any) -> None:
    with pytest.raises(ProtocolError, match="unknown operation"):
        decode_request([messages.REQUEST, 1, operation, {}])


@cases
@given(request=instances(Request), field=st.integers(0, 9), wrong=trees)
def test_field_of_any_type_is_right_or_refused(request: Request, field: int, wrong: Any) -> None:
    names = type(request).__struct_fields__
    if not names:
        return
    message = payload_of(encode_request(1, request))
    message[3][names[field % len(names)]] = wrong
    refusal = ""
    try:
        assert type(decode_request(message)) is type(request)
    except ProtocolError as error:
        refusal = error.message
    assert not refusal or refusal.startswith(f"{request.operation}: ")
