"""Both ports of a server with TLS before strangers: handshakes that are none, broken records, and garbage in good ones.

What comes out whole of a record meets the same code as without TLS: the questions here are those of the layer between.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import authority
from tests.fuzz.conftest import NBYTES, DataStranger, answers_in, bounded, connect_to, exchange, hello_frame

import farpool
from farpool.protocol.addresses import parse_address
from farpool.server.embedded import EmbeddedServer

pytest.importorskip("farpool.native.tls", reason="built only where libssl-dev is: apt-get install libssl-dev")

TRUST = farpool.Tls(ca=authority().ca)
PORTS = st.sampled_from(["control", "data"])


class Target:
    """A server with TLS, a client that keeps to the protocol, and the ports that strangers try."""

    def __init__(self, server: EmbeddedServer, pool: farpool.Pool) -> None:
        self.server = server
        self.slab = pool.allocate(NBYTES)
        self.content = os.urandom(NBYTES)
        self.slab.write(self.content)
        self.owner = DataStranger(pool, pool.allocate(NBYTES))
        address = parse_address(server.tcp_url)
        self.ports = {"control": (address.host, address.port), "data": self.owner.address}
        self._context = ssl.create_default_context(cafile=str(authority().ca))

    def connect(self, port: str) -> socket.socket:
        """Return a connection without TLS."""
        return connect_to(self.ports[port])

    @contextlib.contextmanager
    def shaken(self, port: str) -> Generator[tuple[ssl.SSLSocket, int]]:
        """Yield a connection after its handshake, and a descriptor of the socket below TLS."""
        with self.connect(port) as plain:
            below = os.dup(plain.fileno())
            try:
                with self._context.wrap_socket(plain, server_hostname="127.0.0.1") as shaken:
                    yield shaken, below
            finally:
                os.close(below)

    def check(self) -> None:
        """Fail unless the client's bytes are whole and new clients come in."""
        assert self.slab.read(NBYTES) == self.content
        with farpool.connect(self.server.tcp_url, transport="tcp", tls=TRUST) as other:
            assert other.allocate(8).read(8) == bytes(8)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    settings: dict[str, Any] = {"tls": authority().server().settings, "disconnect_grace": 0.2}
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["tcp"], **settings) as server,
        farpool.connect(server.tcp_url, transport="tcp", tls=TRUST) as pool,
    ):
        yield Target(server, pool)


def first_flight() -> bytes:
    """Return what a client of TLS says first."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


HELLO = first_flight()


def until_closed(connection: ssl.SSLSocket) -> bytes:
    """Return what comes until the server closes, with or without a farewell."""
    received = b""
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        while piece := connection.recv(1 << 16):
            received += piece
    return received


@bounded(60)
@given(port=PORTS, data=st.binary(max_size=600))
def test_what_only_begins_as_a_handshake_does(target: Target, port: str, data: bytes) -> None:
    with target.connect(port) as connection:
        exchange(connection, b"\x16" + data)


@bounded(80)
@given(port=PORTS, cut=st.integers(1, len(HELLO)), place=st.integers(0, len(HELLO) - 1), value=st.integers(0, 255))
def test_a_handshake_with_one_byte_changed_and_the_rest_cut_off(
    target: Target, port: str, cut: int, place: int, value: int
) -> None:
    changed = bytearray(HELLO)
    changed[place] = value
    changed[0] = 0x16
    with target.connect(port) as connection:
        exchange(connection, bytes(changed[:cut]))


@bounded(40)
@given(port=PORTS, data=st.binary(min_size=1, max_size=400))
def test_records_that_nobody_has_sealed(target: Target, port: str, data: bytes) -> None:
    """After the handshake, so that the key is right and the bytes are not."""
    with target.shaken(port) as (connection, below):
        with contextlib.suppress(ConnectionError):
            os.write(below, b"\x17\x03\x03" + len(data).to_bytes(2, "big") + data)
        assert until_closed(connection) == b""


@bounded(40)
@given(port=PORTS, pieces=st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=8))
def test_garbage_in_whole_records_ends_that_connection_alone(target: Target, port: str, pieces: list[bytes]) -> None:
    with target.shaken(port) as (connection, _):
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
            connection.sendall(b"\xff" * 64)
        until_closed(connection)


def test_requests_in_records_of_one_byte(target: Target) -> None:
    with target.shaken("control") as (connection, _):
        for byte in hello_frame():
            connection.sendall(bytes([byte]))
        assert connection.recv(4) != b""
    owner = target.owner
    asked = owner.hello + owner.request("read", length=8)
    with target.shaken("data") as (connection, _):
        for byte in asked:
            connection.sendall(bytes([byte]))
        received = b""
        while len(answers_in(received)) < 2:
            received += connection.recv(4096)
    assert answers_in(received) == [("ok", b""), ("ok", bytes(8))]


def test_who_asks_and_does_not_read_costs_a_bounded_amount(target: Target) -> None:
    """Its answers are sealed as the socket takes them, and no faster."""
    owner = target.owner
    request = owner.request("read", length=NBYTES)
    with target.shaken("data") as (connection, _):
        connection.sendall(owner.hello)
        assert connection.recv(4096)
        connection.settimeout(0.3)
        asked = 0
        with contextlib.suppress(TimeoutError):
            while asked < 64 << 20:
                connection.sendall(request * 64)
                asked += 64 * len(request)
        assert asked < 64 << 20, "the server goes on reading requests whose answers nobody takes"
        target.check()


@pytest.mark.parametrize("port", ["control", "data"])
def test_all_of_it_left_the_others_alone(target: Target, port: str) -> None:
    with target.connect(port) as connection:
        exchange(connection, HELLO[: len(HELLO) // 2])
    target.check()
