"""The control plane as bytes: what strangers and broken clients get, and that nobody else notices."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from farpool.protocol.errors import (
    AuthenticationFailed,
    FarpoolError,
    InvalidArgument,
    PermissionDenied,
    PoolFull,
    ProtocolError,
)
from farpool.protocol.framing import encode_frame
from farpool.protocol.messages import (
    Allocate,
    Attached,
    Done,
    Free,
    Goodbye,
    Heartbeat,
    Hello,
    Listing,
    Open,
    ServerStat,
    SlabList,
    Stat,
    Welcome,
    encode_request,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]


def framed(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload)) + payload


def nested(depth: int) -> bytes:
    return framed(b"\x91" * depth + b"\xc0")


GARBAGE = {
    "zeros": bytes(64),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: farpool\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "HTTP of another method": b"DELETE /slabs HTTP/1.1\r\n\r\n",
    "TLS of another length": b"\x16\x03\x01\x06\xa8\x01\x00\x06\xa4\x03\x03" + bytes(64),
    "an oversized frame": struct.pack("<I", 1 << 31) + b"x" * 100,
    "no msgpack": framed(b"\xc1\xc1\xc1"),
    "no array": framed(b"\x81\xa1a\x01"),
    "no request": encode_frame([1, 2, 3]),
    "an id that is no number": encode_frame([0, "one", "hello", {}]),
    "an id that is too long": encode_frame([0, -1, "hello", {}]),
    "a deep nest": nested(200),
    "the deepest nest": nested(100_000),
    "too long a string": encode_frame([0, 1, "x" * 100_000, {}]),
    "text that is not UTF-8": framed(b"\x94\x00\x01\xa2\xff\xff\x80"),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("greeted", [False, True], ids=["stranger", "session"])
def test_garbage_closes_that_connection_alone_and_is_logged_once(
    server: EmbeddedServer, connect: Connect, name: str, greeted: bool
) -> None:
    other = connect(server.url)
    client = connect(server.tcp_url, hello=greeted)
    host, port = client.socket.getsockname()
    client.socket.sendall(GARBAGE[name])
    client.wait_for_end()
    assert other.ask(Stat(), ServerStat).state == "serving"
    lines = [line for line in server.log().splitlines() if "connection refused" in line and f"{host}:{port}" in line]
    assert len(lines) == 1
    if name.startswith("a") and "request" in name:
        assert name in lines[0]


def test_a_wrong_first_request_is_answered_and_closed(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url, hello=False)
    client.send(Stat())
    (error,) = client.wait_for_end()
    assert error[1:3] == [0, "ProtocolError"]
    assert "hello" in error[3]


@pytest.mark.parametrize(
    ("hello", "kind", "words"),
    [
        (Hello(protocol=99, client="new"), ProtocolError, "version 99"),
        (Hello(protocol=1, client="x", tenant="nobody"), PermissionDenied, 'no tenant "nobody"'),
    ],
)
def test_a_hello_that_cannot_be_is_refused_with_a_reason(
    server: EmbeddedServer, connect: Connect, hello: Hello, kind: type[FarpoolError], words: str
) -> None:
    client = connect(server.url, hello=False)
    with pytest.raises(kind, match=words):
        client.ask(hello, Welcome)
    assert client.wait_for_end() == []


def test_a_flood_of_strangers_shuts_nobody_out_who_says_hello(server: EmbeddedServer, connect: Connect) -> None:
    first = connect(server.tcp_url, hello=False)
    for _ in range(300):
        connect(server.tcp_url, hello=False)
    assert first.wait_for_end() == []
    for url in (server.tcp_url, server.url):
        assert connect(url).ask(Stat(), ServerStat).state == "serving"


def test_a_truncated_frame_ends_with_its_connection(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.tcp_url)
    host, port = client.socket.getsockname()
    client.socket.sendall(encode_request(9, Stat())[:-1])
    client.socket.shutdown(socket.SHUT_WR)
    assert client.wait_for_end() == []
    assert any("middle of a frame" in line and f"{host}:{port}" in line for line in server.log().splitlines())


@pytest.mark.parametrize(
    "message",
    [
        [0, 5, "unheard", {}],
        [0, 5, 7, {}],
        [0, 5, "stat", 7],
        [0, 5, "allocate", {}],
        [0, 5, "allocate", {"nbytes": "many"}],
        [0, 5, "allocate", {"nbytes": 1.5}],
        [0, 5, "allocate", {"nbytes": 4096, "name": 3}],
        [0, 5, "free", {"id": None, "generation": 1}],
        [0, 5, "hello", {"protocol": 1, "client": "again"}],
    ],
)
def test_a_request_that_cannot_be_is_an_error_and_the_connection_goes_on(
    server: EmbeddedServer, connect: Connect, message: list[Any]
) -> None:
    client = connect(server.url)
    client.socket.sendall(encode_frame(message))
    kind, request_id, error, *_ = client.receive()
    assert (kind, request_id, error) == (2, 5, "ProtocolError")
    assert client.ask(Stat(), ServerStat).sessions >= 1


def test_unknown_fields_are_ignored(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    client.socket.sendall(encode_frame([0, 5, "stat", {"flavour": "new"}]))
    assert client.receive()[:2] == [1, 5]


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"nbytes": 0}, InvalidArgument, "at least 1 byte"),
        ({"nbytes": -5}, InvalidArgument, "at least 1 byte"),
        ({"nbytes": 1 << 62}, InvalidArgument, "2\\*\\*62"),
        ({"nbytes": 1 << 40}, PoolFull, r"asked for 1 TiB, .* of the pool's 64 MiB are free"),
        ({"nbytes": 1, "name": ""}, InvalidArgument, "1 to 255 bytes"),
        ({"nbytes": 1, "name": "a\x00b"}, InvalidArgument, "control characters"),
        ({"nbytes": 1, "name": "ä" * 128}, InvalidArgument, "255 bytes"),
        ({"nbytes": 1, "lease": "forever"}, InvalidArgument, "lease must be"),
        ({"nbytes": 1, "lease": float("nan")}, InvalidArgument, "lease must be"),
        ({"nbytes": 1, "lease": -1.0}, InvalidArgument, "lease must be"),
        ({"nbytes": 1, "transport": "pigeon"}, FarpoolError, '"pigeon" is not available'),
    ],
)
def test_an_allocation_that_cannot_be_says_why_and_takes_nothing(
    server: EmbeddedServer, connect: Connect, fields: dict[str, Any], kind: type[FarpoolError], words: str
) -> None:
    client = connect(server.url)
    before = client.ask(Stat(), ServerStat).allocated
    with pytest.raises(kind, match=words):
        client.ask(Allocate(**fields), Attached)
    assert client.ask(Stat(), ServerStat).allocated <= before  # sessions of earlier tests may end just now


def test_pool_full_carries_its_numbers(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    with pytest.raises(PoolFull) as caught:
        client.ask(Allocate(nbytes=1 << 30), Attached)
    assert caught.value.details["asked"] == 1 << 30
    assert caught.value.details["capacity"] == 64 << 20
    assert caught.value.details["free"] <= 64 << 20


def test_requests_are_pipelined_and_short_ones_pass_long_ones(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    long = client.send(Allocate(nbytes=32 << 20))
    short = [client.send(Stat()) for _ in range(50)]
    replies = [client.receive() for _ in range(51)]
    assert sorted(reply[1] for reply in replies) == [long, *short]
    slab = next(reply[2]["slab"] for reply in replies if reply[1] == long)
    assert client.ask(Free(id=slab["id"], generation=slab["generation"]), Done) == Done()
    assert client.ask(Stat(), ServerStat).reclaiming == 0


def test_id_zero_asks_for_no_reply(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    for request in (Heartbeat(), Stat(), Allocate(nbytes=0), Open(name="none")):
        client.socket.sendall(encode_request(0, request))
    reply = client.send(Stat())
    assert client.receive()[:2] == [1, reply]


def test_requests_in_pieces_are_whole(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    for byte in encode_request(3, Stat()):
        client.socket.sendall(bytes([byte]))
    assert client.receive()[:2] == [1, 3]


def test_goodbye_is_answered_and_ends_the_session(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    assert client.ask(Goodbye(), Done) == Done()
    assert client.wait_for_end() == []
    again = connect(server.url, hello=False)
    with pytest.raises(AuthenticationFailed):
        again.ask(Hello(protocol=1, client="raw", resume=client.key), Welcome)
    assert again.ask(Hello(protocol=1, client="raw"), Welcome).resumed is False


def test_a_session_resumes_over_another_kind_of_connection(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    slab = client.ask(Allocate(nbytes=4096), Attached).slab
    client.close()
    again = connect(server.tcp_url, resume=client.key)
    assert again.welcome.resumed
    assert again.welcome.session == client.welcome.session
    assert again.ask(Open(id=slab.id), Attached).slab.state == "live"
    third = connect(server.url, resume=client.key)
    assert again.wait_for_end() == []
    third.ask(Stat(), ServerStat)


def test_a_reader_that_does_not_read_waits_alone(server: EmbeddedServer, connect: Connect) -> None:
    slow, other = connect(server.url), connect(server.url)
    for number in range(1000):
        slow.send(Allocate(nbytes=1, name=f"slow {number} {'x' * 200}"))
        slow.receive()
    wanted = [slow.send(Listing()) for _ in range(60)]
    assert other.ask(Stat(), ServerStat).slabs >= 1000
    for request_id in wanted:
        assert len(slow.answer(request_id, SlabList).slabs) == 100


def test_lists_are_paged_in_the_order_of_ids(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    made = [client.ask(Allocate(nbytes=1), Attached).slab.id for _ in range(7)]
    seen: list[int] = []
    after, more = 0, True
    while more:
        page = client.ask(Listing(after=after, limit=3), SlabList)
        assert len(page.slabs) <= 3
        seen += [slab.id for slab in page.slabs]
        after, more = seen[-1], page.more
    assert seen == sorted(seen)
    assert set(made) <= set(seen)
    assert client.ask(Listing(after=seen[-1]), SlabList) == SlabList(slabs=[], more=False)


def test_there_is_a_limit_of_sessions(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"], max_sessions=2) as server:
        first, _ = connect(server.url), connect(server.url)
        with pytest.raises(PermissionDenied, match="limit of 2 sessions"):
            connect(server.tcp_url)
        first.ask(Goodbye(), Done)
        connect(server.tcp_url)


def test_the_operator_gets_in_when_clients_have_all_sessions(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"], max_sessions=1) as server:
        connect(server.tcp_url)
        operators = [connect(server.url) for _ in range(8)]
        assert operators[0].ask(Stat(), ServerStat).sessions == 9
        with pytest.raises(PermissionDenied, match="max_sessions"):
            connect(server.url)
