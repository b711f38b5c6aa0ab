"""Lessons row 24: a cancelled await handed the next caller someone else's reply; an un-awaited close leaked memory.

Here requests have ids, a reply that nobody waits for is thrown away or undone, and ``close`` works when it is called.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import farpool
import farpool.aio

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer


async def wait_for(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look every 10 ms, for 20 s."""
    for _ in range(2000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it has not come about")


async def test_replies_go_to_their_callers(server: EmbeddedServer, transport: str) -> None:
    """Names, bytes and words are asked for at once, and half of the callers are cancelled at random moments."""
    rng = random.Random(24)
    async with farpool.aio.connect(server.url, transport=transport, timeout=30) as pool:
        slabs = [await pool.allocate(4096, name=f"row 24 of {number}") for number in range(16)]
        for number, slab in enumerate(slabs):
            await slab.write(bytes([number]) * 4096)
            await slab.store(8, number)

        async def open_one(number: int) -> None:
            slab = await pool.open(f"row 24 of {number}", mode="r")
            assert slab.id == slabs[number].id
            assert await slab.read(1) == bytes([number])

        async def read_one(number: int) -> None:
            assert await slabs[number].read(100, 16) == bytes([number]) * 100

        async def load_one(number: int) -> None:
            assert await slabs[number].load(8) == number

        for _ in range(20):
            works = [work(number) for number in range(16) for work in (open_one, read_one, load_one)]
            tasks = [asyncio.create_task(work) for work in works]
            for task in rng.sample(tasks, 24):
                await asyncio.sleep(0)
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome


async def test_cancelled_allocations_leave_nothing(server: EmbeddedServer, transport: str) -> None:
    async with farpool.aio.connect(server.url, transport=transport, timeout=30) as pool:
        kept = await pool.allocate(4096)
        before = {info.id for info in await pool.slabs()}
        for turns in range(12):
            task: asyncio.Task[Any] = asyncio.create_task(pool.allocate(65536, lease="persistent"))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await (await task).free()

        async def as_before() -> bool:
            return {info.id for info in await pool.slabs()} == before

        await wait_for(as_before)
        assert await kept.read(1) == b"\0"


async def test_close_that_nobody_awaits(server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(server.url, transport=transport) as watcher:
        pool = await farpool.aio.connect(server.url, transport=transport)
        slab = await pool.allocate("8MiB", name="row 24 leaked")
        pool.close()

        async def given_back() -> bool:
            leaked = any(info.name == "row 24 leaked" for info in watcher.slabs())
            return not leaked and watcher.stat().reclaiming == 0

        await wait_for(given_back)
        with pytest.raises(farpool.StaleSlab):
            await slab.read(1)
        pool.close()
        await pool.close()


async def test_slab_closed_by_a_call_that_nobody_awaits(server: EmbeddedServer, transport: str) -> None:
    async with farpool.aio.connect(server.url, transport=transport) as pool:
        slab = await pool.allocate(4096, lease="session")
        slab.close()
        with pytest.raises(farpool.StaleSlab):
            await slab.read(1)

        async def detached() -> bool:
            return not any(info.attached for info in await pool.slabs() if info.id == slab.id)

        await wait_for(detached)
