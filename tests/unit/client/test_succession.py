"""A session that has ended and the one after it: which handles go on, and that nothing is asked for the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.plain_transport import PlainRegion, PlainTransport
from tests.unit.client.scripted_server import Peer, ScriptedServer

from farpool.client import aio
from farpool.client.pool import Pool
from farpool.client.slab import Slab
from farpool.protocol.errors import AuthenticationFailed, StaleSlab
from farpool.protocol.messages import Attach, Detach, Free, Hello, Open, Request

if TYPE_CHECKING:
    from farpool.transports.contract import Ticket

MakePool = Callable[[ThreadPoolExecutor], aio.Pool]


@dataclass
class InterruptedTransport(PlainTransport):
    """Something happens between the server's reply and the region that is made of it."""

    meanwhile: Callable[[], object] | None = None

    def attach(self, ticket: Ticket, seconds: float) -> PlainRegion:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().attach(ticket, seconds)


@pytest.fixture
def transport() -> InterruptedTransport:
    """The client half that pools attach over."""
    return InterruptedTransport()


def forget_sessions(server: ScriptedServer) -> None:
    """Let every session end, and the next one have another number."""
    server.sessions = dict.fromkeys(server.sessions, b"of somebody else")


def begin_anew(server: ScriptedServer) -> None:
    server.stop()
    forget_sessions(server)
    server.rules.pop(Hello, None)
    server.start()


def stop_in_order(server: ScriptedServer) -> None:
    server.stop()
    server.sessions.clear()

    def refuse(peer: Peer, request_id: int, request: Request) -> None:
        assert isinstance(request, Hello)
        if request.resume is not None:
            raise AuthenticationFailed("that session has ended", stopped=True)
        server.answer(peer, request_id, request)

    server.rules[Hello] = refuse
    server.start()


def asked(server: ScriptedServer) -> list[type[Request]]:
    return [type(request) for _, request in server.requests if not isinstance(request, Hello)]


async def test_handles_of_a_session_that_ended_ask_for_nothing(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        slabs = [await pool.allocate(8, lease="persistent") for _ in range(3)]
        begin_anew(server)
        await pool.stat()
        before = asked(server)
        for slab in slabs:
            for call in (slab.read(8), slab.write(b"late"), slab.free(), slab.grants(), slab.reserve()):
                with pytest.raises(StaleSlab):
                    await call
        with pytest.raises(StaleSlab):
            await pool.free_many(slabs)
        assert asked(server) == before
        assert pool.session_id == 2


async def test_a_number_that_comes_again_is_another_session(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    """An arena that was wiped counts sessions and slabs from 1 again: those are somebody else's."""
    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        slab = await pool.allocate(8, lease="persistent")
        server.stop()
        server.sessions.clear()
        server.start()
        await pool.stat()
        with pytest.raises(StaleSlab):
            await slab.write(b"late")
        assert pool.session_id == 1
        assert Attach not in asked(server)


async def test_a_server_that_stopped_in_order_is_followed(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        slab = await pool.allocate(8, lease="persistent", name="a")
        alone = await pool.open("a", exclusive=True)
        for _ in range(2):
            stop_in_order(server)
            await pool.stat()
            assert await slab.write(b"goes on") == 7
        assert asked(server).count(Attach) == 2
        with pytest.raises(StaleSlab):
            await alone.write(b"late")
        begin_anew(server)
        await pool.stat()
        with pytest.raises(StaleSlab):
            await slab.write(b"late")
        assert asked(server).count(Attach) == 2


async def test_an_attach_under_way_when_the_session_ends(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    def end_session(peer: Peer, request_id: int, request: Request) -> None:
        forget_sessions(server)
        peer.cut()

    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        slab = await pool.allocate(8, lease="persistent")
        slab.attachment.region.close()  # as an event does that the slab has other memory now
        server.rules[Attach] = end_session
        with pytest.raises(StaleSlab):
            await slab.write(b"late")
        assert asked(server).count(Attach) == 1


def test_a_session_that_ends_before_what_it_opened_is_reached(
    server: ScriptedServer, pool: Pool, transport: InterruptedTransport
) -> None:
    """The region of the old session is of no use; the open is asked for in the new one."""
    pool.allocate(8, name="a", lease="persistent")

    def end_session() -> None:
        begin_anew(server)
        pool.stat()

    for alone in (False, True):
        transport.meanwhile = end_session
        slab = pool.open("a", exclusive=alone)
        assert slab.write(b"reached") == 7
        assert slab.exclusive is alone
        assert pool.session_id == 2 + alone
    assert asked(server).count(Open) == 3, "a shared one is attached by its number"
    assert asked(server).count(Attach) == 1


def test_what_was_let_go_of_in_a_session_is_not_said_in_the_next(server: ScriptedServer, pool: Pool) -> None:
    slab, again = pool.allocate(8, name="a", lease="persistent"), pool.open("a", exclusive=True)
    server.stop()
    slab.close()
    again.close()
    forget_sessions(server)
    server.start()
    again = pool.open("a", exclusive=True)
    pool.stat()
    assert Detach not in asked(server)
    again.close()
    pool.stat()
    assert asked(server).count(Detach) == 2


def test_a_free_that_met_the_end_of_its_session_has_not_succeeded(server: ScriptedServer, pool: Pool) -> None:
    """Sent again it would end the slab of whoever has it now; whether the first try has is unknown."""

    def end_session(peer: Peer, request_id: int, request: Request) -> None:
        forget_sessions(server)
        peer.cut()

    frees: list[Callable[[Slab], None]] = [lambda slab: slab.free(), lambda slab: pool.free_many([slab])]
    for free in frees:
        slab = pool.allocate(8, lease="persistent")
        server.rules[Free] = end_session
        with pytest.raises(StaleSlab):
            free(slab)
        del server.rules[Free]
    assert len(server.slabs) == 2
    assert len(server.seen(Free)) == 2
