"""Handles that have a slab for their session alone, and what the server hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.unit.client.scripted_server import WITHIN, ScriptedServer

from farpool.client import aio
from farpool.client.pool import Pool
from farpool.protocol.errors import DeadlineExceeded, SlabBusy
from farpool.protocol.messages import Detach, Open

if TYPE_CHECKING:
    from tests.unit.client.scripted_server import Asked


def ends_of(server: ScriptedServer, count: int = 1) -> list[Detach]:
    """Wait until others were let in again *count* times, and return all such requests."""
    came = 0
    while True:
        came += 1
        ends = [request for request in server.seen(Detach, came) if request.exclusive]
        if len(ends) >= count:
            return ends


def answer(server: ScriptedServer, held: list[Asked]) -> None:
    del server.rules[Open]
    for peer, request_id, request in held:
        server.answer(peer, request_id, request)


def test_an_open_on_its_way_when_the_last_other_handle_is_closed_asks_again(server: ScriptedServer, pool: Pool) -> None:
    """What the server has answered to it was taken back by the close of the other."""
    pool.allocate(8, name="alone")
    first = pool.open("alone", exclusive=True)
    held = server.hold(Open)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(pool.open, "alone", exclusive=True)
        server.seen(Open, 2)
        first.close()
        assert len(ends_of(server)) == 1
        answer(server, held)
        second = opening.result(WITHIN)
    assert len(server.seen(Open)) == 3, "it was told before others were let in"
    assert second.exclusive
    assert not first.exclusive
    second.close()
    assert len(ends_of(server, 2)) == 2


def test_one_that_asks_again_and_comes_too_late_is_told_so(server: ScriptedServer, pool: Pool) -> None:
    pool.allocate(8, name="alone")
    first = pool.open("alone", exclusive=True)
    held = server.hold(Open)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(pool.open, "alone", exclusive=True)
        server.seen(Open, 2)
        first.close()
        ends_of(server)

        def refuse(*_: object) -> None:
            raise SlabBusy("another session has it")

        answered = list(held)
        server.rules[Open] = refuse
        for peer, request_id, request in answered:
            server.answer(peer, request_id, request)
        with pytest.raises(SlabBusy):
            opening.result(WITHIN)


def test_an_open_that_nobody_waits_for_any_more_lets_others_in(server: ScriptedServer, pool: Pool) -> None:
    pool.allocate(8, name="alone")
    held = server.hold(Open)
    with pytest.raises(DeadlineExceeded):
        pool.open("alone", exclusive=True, timeout=0.05)
    answer(server, held)
    pool.stat()
    pool.stat()  # behind what the first one's reply came after
    assert len(ends_of(server)) == 1


async def test_a_cancelled_open_lets_others_in(
    server: ScriptedServer, make_aio_pool: Callable[[ThreadPoolExecutor], aio.Pool]
) -> None:
    async with make_aio_pool(ThreadPoolExecutor(2)) as pool:
        await pool.allocate(8, name="alone")
        held = server.hold(Open)
        opening = asyncio.ensure_future(pool.open("alone", exclusive=True))
        await asyncio.to_thread(server.seen, Open)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        answer(server, held)
        assert len(await asyncio.to_thread(ends_of, server)) == 1


def test_what_the_server_takes_away_is_had_alone_no_more(server: ScriptedServer, pool: Pool) -> None:
    pool.allocate(8, name="alone")
    handle = pool.open("alone", exclusive=True)
    assert handle.exclusive
    held = server.hold(Open)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(pool.open, "alone")
        server.seen(Open, 2)
        held[0][0].event("revoked", server.slabs[1])
        answer(server, held)
        opening.result(WITHIN)
    assert not handle.exclusive
