"""One connection's care for its buffers, with a transport that the test fills and empties."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from farpool.protocol.messages import Done, Stat, encode_request
from farpool.server.control import MAX_WORKING, WRITE_CAP_BYTES, Connection, ControlPlane
from farpool.server.service import PoolService
from farpool.server.sessions import Session, SessionState
from farpool.server.turns import Turns


class Wire:
    """An asyncio transport whose peer reads nothing."""

    def __init__(self) -> None:
        self.buffered = 0
        self.reading = True
        self.resumed = asyncio.Event()
        self.aborted = False
        self.closed = False

    def get_extra_info(self, name: str) -> Any:
        return {"peername": ("192.0.2.7", 99)}.get(name)

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def write(self, data: bytes) -> None:
        self.buffered += len(data)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        self.resumed.set()

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


class Service:
    """Answers nothing until it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.turns = Turns(asyncio.get_running_loop().call_soon)

    def handle(self, session: Session, request: object) -> Any:
        self.asked += 1
        return self._answer(self.asked)

    def hear(self, session: Session) -> None:
        session.last_seen += 1

    async def _answer(self, number: int) -> Any:
        await self.gate.wait()
        if number == 1:
            raise RuntimeError("a bug of one request")
        return Done()


async def until(true: Callable[[], bool]) -> None:
    """Let the loop turn: a connection does as much in one turn as its tenant has time for."""
    while not true():  # noqa: ASYNC110  nothing tells
        await asyncio.sleep(0)


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def wire() -> Wire:
    return Wire()


@pytest.fixture
async def connection(service: Service, wire: Wire) -> Connection:
    plane = ControlPlane(cast(PoolService, service), asyncio.get_running_loop())
    made = plane.connection()
    made.connection_made(cast(asyncio.BaseTransport, wire))
    made.session = Session(1, "default", b"", SessionState.CONNECTED, 0.0)
    return made


async def test_long_requests_wait_for_each_other(connection: Connection, service: Service, wire: Wire) -> None:
    connection.data_received(b"".join(encode_request(number, Stat()) for number in range(1, 101)))
    await asyncio.wait_for(until(lambda: service.asked == MAX_WORKING), 20)
    assert not wire.reading
    service.gate.set()
    await asyncio.wait_for(wire.resumed.wait(), 20)
    await asyncio.wait_for(until(lambda: service.asked == 100), 20)
    assert connection.session is not None
    assert connection.session.last_seen > 0
    connection.close("the test ends")


async def test_requests_wait_while_replies_are_not_read(connection: Connection, service: Service, wire: Wire) -> None:
    connection.pause_writing()
    connection.data_received(encode_request(1, Stat()) * 3)
    assert service.asked == 0
    assert not wire.reading
    connection.resume_writing()
    await asyncio.wait_for(until(lambda: service.asked == 3 and wire.reading), 20)
    connection.close("the test ends")


async def test_a_peer_that_never_reads_is_given_up(connection: Connection, wire: Wire) -> None:
    connection.pause_writing()
    connection.send(bytes(WRITE_CAP_BYTES))
    assert not wire.aborted
    connection.send(b"x")
    assert wire.aborted
    connection.send(b"nothing more")
    assert wire.buffered == WRITE_CAP_BYTES + 1
    connection.close("the test ends")


async def test_a_closing_connection_does_nothing_more(connection: Connection, service: Service, wire: Wire) -> None:
    connection.close("the test says so")
    connection.close("twice")
    connection.data_received(encode_request(1, Stat()))
    assert wire.closed
    assert service.asked == 0
