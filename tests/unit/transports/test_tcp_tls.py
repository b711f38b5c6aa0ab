"""The data port of a server with TLS: who must speak it, who may, and what the log says of the others."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from tests.certificates import authority
from tests.contexts import server_context

from farpool.native import tcp_wire
from farpool.protocol.errors import AuthenticationFailed, FarpoolError
from farpool.transports.tcp.server import TcpServer

tls = pytest.importorskip("farpool.native.tls", reason="built only where libssl-dev is: apt-get install libssl-dev")

Reports = asyncio.Queue[tuple[str, str]]
OPEN, ENCRYPTED = bytes(32), bytes([1]) * 32
"""Secrets of two sessions: one that came in clear, one by TLS."""


@pytest_asyncio.fixture
async def port() -> AsyncIterator[tuple[int, Reports]]:
    """A data port with two sessions in the slots 0 and 1, and what it reports."""
    reports = Reports()

    def report(kind: str, fields: Mapping[str, Any]) -> None:
        reports.put_nowait((kind, fields["reason"]))

    def refused(act: str, error: FarpoolError, about: Mapping[str, Any]) -> None:
        reports.put_nowait((f"{act} refused", error.message))

    own = authority().server()
    server = TcpServer()
    encryptor = tls.TlsServer(own.certificate, own.key)
    await server.start(server_context({"threads": 1}, report, encryptor=encryptor, refused=refused))
    reactor = server._reactor  # pyright: ignore[reportPrivateUsage]  no session is needed to open a slot
    assert reactor is not None
    assert (reactor.admit(1, OPEN), reactor.admit(2, ENCRYPTED, True)) == (0, 1)
    assert server.offer()["tls"]
    yield server.offer()["port"], reports
    await server.stop()


async def say_hello(port: int, slot: int, secret: bytes, *, encrypted: bool) -> int | None:
    """Return the status of the answer; None if there is none."""
    context = ssl.create_default_context(cafile=str(authority().ca)) if encrypted else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        writer.write(tcp_wire.pack_hello(slot, secret))
        answer = await reader.readexactly(tcp_wire.ANSWER_BYTES)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.transport.abort()
    return int(tcp_wire.unpack_answer(answer)["status"])


async def test_a_session_that_came_by_tls_must(port: tuple[int, Reports]) -> None:
    number, reports = port
    async with asyncio.timeout(20):
        assert await say_hello(number, 1, ENCRYPTED, encrypted=True) == 0
        assert await say_hello(number, 1, ENCRYPTED, encrypted=False) != 0
        kind, reason = await reports.get()
    assert kind == "hello refused"
    assert "encrypted" in reason


async def test_one_that_came_in_clear_may(port: tuple[int, Reports]) -> None:
    number, _ = port
    async with asyncio.timeout(20):
        assert await say_hello(number, 0, OPEN, encrypted=True) == 0
        assert await say_hello(number, 0, OPEN, encrypted=False) == 0


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x00\x05hello", b"\x16" * 500], ids=["a short record", "handshakes"])
async def test_a_handshake_that_fails_is_logged_with_the_reason(port: tuple[int, Reports], sent: bytes) -> None:
    number, reports = port
    _, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(sent)
    async with asyncio.timeout(20):
        kind, reason = await reports.get()
    writer.close()
    assert kind == "no TLS"
    assert reason.startswith("the TLS handshake failed: ")


async def test_a_client_that_does_not_trust_it_is_logged(port: tuple[int, Reports]) -> None:
    number, reports = port

    def connect() -> None:
        with socket.create_connection(("127.0.0.1", number)) as opened:
            tls.TlsClient("127.0.0.1").connect(opened.fileno(), "the port", time.monotonic() + 20)

    with pytest.raises(AuthenticationFailed, match="name its authority"):
        await asyncio.to_thread(connect)
    async with asyncio.timeout(20):
        assert "unknown ca" in (await reports.get())[1]


async def test_who_stops_in_the_handshake_is_dropped(port: tuple[int, Reports]) -> None:
    number, reports = port
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(b"\x16\x03\x01")
    async with asyncio.timeout(20):
        assert await reader.read() == b""
        assert (await reports.get())[0] == "silent"
    writer.close()
