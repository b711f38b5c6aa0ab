"""What no client of ours sends, to a running server's control plane: an answer or an end, and nobody else notices."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import (
    REQUESTS,
    Target,
    bounded,
    connect_to,
    exchange,
    framed,
    hello_frame,
    messages_in,
    name_of,
    pour,
)

import farpool
from farpool.protocol.framing import MAX_REQUEST_BYTES, encode_frame
from farpool.protocol.messages import (
    ERROR,
    EVENT,
    OPERATIONS,
    REPLY,
    DraftEnd,
    Goodbye,
    Hello,
    ResumeKey,
    Stat,
    encode_request,
)

HELLO = hello_frame()
STAT = encode_request(2, Stat())
OVER = st.sampled_from(["tcp", "unix"])

EXAMPLES: dict[object, Any] = {int: 1, float: 1.0, str: "tcp", bytes: b"", dict[str, Any]: {}, list[DraftEnd]: []}
"""A value of each type that a field may have."""

ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 3, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.5, -0.0, 1e300, float("nan"), float("inf")),
    *("", "text", "persistent", "1e9", "\0", "\x1b[2J", "x" * 256, "\N{GRINNING FACE}" * 64, b"", b"bytes", bytes(32)),
    *([], [1], {}, {"a": 1}, {"session": 1, "secret": b""}, {"session": 2**64 - 1, "secret": bytes(32)}),
]


def request(request_id: object, operation: object, fields: object, kind: object = 0) -> bytes:
    """Return the frame of a request that our own encoder would refuse to make."""
    return encode_frame([kind, request_id, operation, fields])


def valid_fields(operation: str) -> dict[str, Any]:
    """Return the fields that the operation cannot do without, with values of the right types."""
    return {
        field.name: EXAMPLES[field.type] for field in msgspec.structs.fields(OPERATIONS[operation]) if field.required
    }


# Anything ----------------------------------------------------------------------------------------------------------


@bounded(60)
@given(over=OVER, known=st.booleans(), pieces=st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_garbage_ends_that_connection_alone(target: Target, over: str, known: bool, pieces: list[bytes]) -> None:
    target.talk(*[HELLO] * known, *pieces, over=over)
    target.check()


@bounded(60)
@given(over=OVER, requests=st.lists(REQUESTS, min_size=1, max_size=8))
def test_trees_of_any_shape_are_answered_or_end_the_connection(
    target: Target, over: str, requests: list[list[Any]]
) -> None:
    frames = [encode_frame(message) for message in requests]
    answers = target.talk(HELLO, *frames, over=over)
    assert answers[0][0] == REPLY
    assert all(answer[0] in (REPLY, ERROR, EVENT) for answer in answers)
    target.check()


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - {"goodbye"}))
def test_a_wrong_field_is_one_error_reply(target: Target, operation: str) -> None:
    kinds = [None, 1, "x", [], b"", [["a", 1]]]
    frames = [request(number, operation, fields) for number, fields in enumerate(kinds, 100)]
    for field in OPERATIONS[operation].__struct_fields__:
        for value in ODD_VALUES:
            frames.append(request(100 + len(frames), operation, {**valid_fields(operation), field: value}))
    answers = target.talk(HELLO, *frames, STAT)[1:]
    # What takes long is answered when it is done; by then this connection may have ended.
    answered, expected = [answer[1] for answer in answers], {2, *range(100, 100 + len(frames))}
    assert len(answered) == len(set(answered))
    assert set(answered) == expected or (operation == "commit" and set(answered) < expected)
    assert [REPLY, 2] in [answer[:2] for answer in answers], "the connection did not go on"
    errors = [answer for answer in answers if answer[0] == ERROR]
    assert all(kind in farpool.FarpoolError.kinds for _, _, kind, *_ in errors), errors
    target.check()


# What is refused, and logged once ----------------------------------------------------------------------------------

FOREIGN: dict[str, tuple[list[bytes], str]] = {
    "HTTP": ([b"GET / HTTP/1.1\r\nHost: pool\r\n\r\n"], "HTTP request"),
    "a large HTTP request": ([b"POST /slabs HTTP/1.1\r\n\r\n" + bytes(1 << 20)], "HTTP request"),
    "HTTP/2": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], "HTTP/2 request"),
    "TLS": ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)], "TLS handshake"),
    "SSH": ([b"SSH-2.0-OpenSSH_9.9\r\n"], "SSH client"),
}
REFUSED: dict[str, tuple[list[bytes], str]] = {
    "a frame of 4 GiB": ([b"\xff\xff\xff\xff"], "announces 4294967295 bytes"),
    "a frame over the limit": ([(MAX_REQUEST_BYTES + 1).to_bytes(4, "little")], f"the limit is {MAX_REQUEST_BYTES}"),
    "no msgpack": ([framed(b"\xc1")], "not valid msgpack"),
    "an empty frame": ([framed(b"")], "not valid msgpack"),
    "no array": ([framed(b"\x80")], "not an array"),
    "nested deeply": ([framed(b"\x91" * 1000 + b"\xc0")], "nests deeper"),
    "nested very deeply": ([framed(b"\x91" * 60_000 + b"\xc0")], "not valid msgpack"),
    "a message of three": ([encode_frame([0, 1, "stat"])], "requests only"),
    "a reply": ([request(1, {}, {}, kind=REPLY)], "requests only"),
    "an error": ([encode_frame([ERROR, 1, "PoolFull", "you are full", {}])], "requests only"),
    "an event": ([encode_frame([EVENT, "draining", {}])], "requests only"),
    "a request of kind False": ([request(1, "stat", {}, kind=False)], "requests only"),
    "an id that is text": ([request("1", "stat", {})], "unsigned 64-bit"),
    "an id that is negative": ([request(-1, "stat", {})], "unsigned 64-bit"),
    "an id that is a float": ([request(1.0, "stat", {})], "unsigned 64-bit"),
    "an id that is true": ([request(True, "stat", {})], "unsigned 64-bit"),
    "an id that is an array": ([request([1], "stat", {})], "unsigned 64-bit"),
    "no id": ([request(None, "stat", {})], "unsigned 64-bit"),
    "half a frame": ([STAT[: len(STAT) // 2]], "in the middle of a frame"),
}


@pytest.mark.parametrize(
    ("case", "known"), [*((case, False) for case in FOREIGN | REFUSED), *((case, True) for case in REFUSED)]
)
def test_what_is_refused_is_logged_once_with_its_peer(target: Target, case: str, known: bool) -> None:
    pieces, reason = (FOREIGN | REFUSED)[case]
    since = len(target.server.log())
    with target.connect() as connection:
        peer = name_of(connection)
        answers = messages_in(exchange(connection, *[HELLO] * known, *pieces))
    assert len(answers) <= 1 + known, answers
    entry = target.logged_once(since, peer)
    assert reason in entry.get("reason", entry["event"])
    target.check()


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - {"hello", "challenge"}))
def test_a_request_before_hello_is_refused(target: Target, operation: str) -> None:
    since = len(target.server.log())
    with target.connect() as connection:
        peer = name_of(connection)
        ((kind, request_id, error, *_),) = messages_in(
            exchange(connection, request(7, operation, valid_fields(operation)), HELLO)
        )
    assert (kind, request_id, error) == (ERROR, 0, "ProtocolError")
    assert target.logged_once(since, peer)["reason"] == f"{operation} before hello"
    target.check()


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        (Hello(protocol=2, client="a newer one"), "ProtocolError"),
        (Hello(protocol=-1, client="an odd one"), "ProtocolError"),
        (Hello(protocol=1, client="x", tenant="nobody"), "PermissionDenied"),
        (Hello(protocol=1, client="x", tenant="\x1b[2J\n" * 1000), "PermissionDenied"),
    ],
    ids=["a newer version", "a negative version", "an unknown tenant", "a tenant of control characters"],
)
def test_a_hello_that_cannot_be_is_an_error_reply_and_logged_once(target: Target, hello: Hello, error: str) -> None:
    since = len(target.server.log())
    with target.connect() as connection:
        peer = name_of(connection)
        ((kind, request_id, name, text, _),) = messages_in(exchange(connection, encode_request(5, hello), STAT))
    assert (kind, request_id, name) == (ERROR, 5, error)
    assert text.isprintable(), "a stranger's control characters would reach the operator's terminal"
    assert target.logged_once(since, peer)["event"] == "hello refused"
    target.check()


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(32), bytes(33), bytes(60_000)], ids=len)
def test_nobody_resumes_a_neighbours_session(target: Target, secret: bytes) -> None:
    session = target.neighbours[0].pool.session_id
    hello = Hello(protocol=1, client="a thief", resume=ResumeKey(session=session, secret=secret))
    (answer,) = target.talk(encode_request(1, hello))
    assert answer[:3] == [ERROR, 1, "AuthenticationFailed"]
    target.check()


# What goes on ------------------------------------------------------------------------------------------------------


def test_a_second_hello_is_an_error_and_the_session_goes_on(target: Target) -> None:
    first, second, third = target.talk(HELLO, hello_frame(9), STAT)
    assert first[:2] == [REPLY, 1]
    assert second[:2] == [ERROR, 9]
    assert third[:2] == [REPLY, 2]


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_one_byte_at_a_time_is_a_conversation_like_any_other(target: Target, over: str) -> None:
    stream = HELLO + STAT + encode_request(3, Goodbye())
    answers = target.talk(*[stream[place : place + 1] for place in range(len(stream))], over=over)
    assert [answer[:2] for answer in answers] == [[REPLY, 1], [REPLY, 2], [REPLY, 3]]


def test_ids_are_the_clients_own_business(target: Target) -> None:
    ids = [1, 1, 2**64 - 1, 2**63, 1]
    answers = target.talk(HELLO, *[request(number, "heartbeat", {}) for number in [0, *ids, 0]])
    assert [answer[:2] for answer in answers] == [[REPLY, 1], *[[REPLY, number] for number in ids]]


def test_thousands_of_requests_at_once_are_all_answered(target: Target) -> None:
    peak = target.forget_peak()
    frames = [encode_request(number, Stat()) for number in range(1, 10_001)]
    answers = target.talk(HELLO + b"".join(frames))
    assert [answer[1] for answer in answers[1:]] == list(range(1, 10_001))
    assert target.memory("VmHWM") - peak < 32 << 20
    target.check()


# Who is slow, or many ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_who_never_reads_is_not_read_from_either(target: Target, over: str) -> None:
    peak = target.forget_peak()
    with target.connect(over) as connection:
        connection.sendall(HELLO)
        pour(connection, STAT * 1000, most=64 << 20)
        target.check()
        assert target.memory("VmHWM") - peak < 32 << 20
    target.check()


def test_many_strangers_at_once_are_shown_out_and_then_forgotten(target: Target) -> None:
    with ExitStack() as stack:
        strangers = [stack.enter_context(target.connect()) for _ in range(300)]
        target.check()
        readable, _, _ = select.select(strangers, [], [], 10.0)
        assert readable, "nobody was refused"
        target.check()
    with farpool.connect(target.server.tcp_url, transport="tcp") as pool:
        assert pool.allocate(10).read(10) == bytes(10)


def test_the_silent_are_closed_in_the_end(target: Target) -> None:
    params = target.neighbours[1].slab.attachment.ticket.params
    cxl = f"{target.address('unix')}.cxl"
    since = len(target.server.log())
    with (
        target.connect() as silent,
        target.connect() as slow,
        connect_to((params["host"], params["port"])) as data,
        connect_to(cxl, socket.SOCK_SEQPACKET) as descriptors,
    ):
        slow.sendall(HELLO[:5])
        peers = [name_of(connection) for connection in (silent, slow, data)]
        for connection in (silent, slow, data, descriptors):
            received = b""
            while piece := connection.recv(4096):
                received += piece
            assert not messages_in(received)
    for peer in peers:
        target.logged_once(since, peer)
    target.check()
