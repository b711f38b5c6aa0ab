"""What an operator reads in the log about clients that the tcp data port has turned away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from tests.contexts import server_context

from farpool.native import tcp_wire
from farpool.protocol.errors import FarpoolError
from farpool.transports.tcp.server import TcpServer

Reports = asyncio.Queue[tuple[str, str]]


@pytest_asyncio.fixture
async def port() -> AsyncIterator[tuple[int, Reports]]:
    """A data port without sessions, and what it reports."""
    reports = Reports()

    def report(kind: str, fields: Mapping[str, Any]) -> None:
        assert fields["peer"].startswith("127.0.0.1:")
        reports.put_nowait((kind, fields["reason"]))

    def refused(act: str, error: FarpoolError, about: Mapping[str, Any]) -> None:
        report(f"{act} refused", {"reason": error.message, **about})

    server = TcpServer()
    await server.start(server_context({"threads": 1}, report, refused=refused))
    yield server.offer()["port"], reports
    await server.stop()


@pytest.mark.parametrize(
    ("sent", "kind", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "garbage", "HTTP"),
        (b"\x16\x03\x01\x02\x00", "garbage", "TLS"),
        (b"\xff\xfe", "garbage", "another version"),
        (tcp_wire.pack_hello(0, bytes(32))[:7], "cut short", "after 7 bytes"),
        (tcp_wire.pack_hello(0, bytes(32)), "hello refused", "not of a session"),
        (tcp_wire.pack_hello(0, bytes(32), version=9), "refused", "speaks version 9"),
        (tcp_wire.pack_request(operation=tcp_wire.OPERATIONS["load"]), "out of turn", "before the hello"),
    ],
    ids=["http", "tls", "two bytes", "cut", "stranger", "version", "no hello"],
)
async def test_the_reason_is_readable(port: tuple[int, Reports], sent: bytes, kind: str, reason: str) -> None:
    """Also of a client that leaves at once."""
    number, reports = port
    _, writer = await asyncio.open_connection("127.0.0.1", number)
    writer.write(sent)
    writer.close()
    async with asyncio.timeout(20):
        reported, text = await reports.get()
    assert reported == kind
    assert reason in text


async def test_a_probe_is_nothing_to_report(port: tuple[int, Reports]) -> None:
    number, reports = port
    for sent in (b"", b"\xff\xfe"):
        _, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(sent)
        writer.close()
    async with asyncio.timeout(20):
        assert (await reports.get())[0] == "garbage"
    assert reports.empty()
