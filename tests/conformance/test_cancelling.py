"""A cancelled awaitable: nobody gets its bytes, its buffer is left alone from then on, and the connection goes on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from array import array
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import farpool
import farpool.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from farpool.server.embedded import EmbeddedServer

MIB = 1 << 20
LARGE = 16 * MIB


@pytest_asyncio.fixture
async def apool(server: EmbeddedServer, transport: str) -> AsyncIterator[farpool.aio.Pool]:
    async with farpool.aio.connect(server.url, transport=transport, timeout=30) as pool:
        yield pool


@pytest_asyncio.fixture
async def large(apool: farpool.aio.Pool) -> farpool.aio.Slab:
    """A slab whose bytes take long enough to move."""
    slab = await apool.allocate(LARGE)
    for start in range(0, LARGE, 4 * MIB):
        await slab.write(b"\x5a" * (4 * MIB), start)
    return slab


async def begin(task: asyncio.Task[Any], turns: int) -> None:
    """Let *task* run for some turns of the loop."""
    for _ in range(turns):
        if task.done():
            return
        await asyncio.sleep(0)


async def cancel(task: asyncio.Task[Any]) -> bool:
    """Cancel *task* and return whether that was in time."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


@pytest.mark.parametrize("turns", [0, 1, 3, 8, 20])
async def test_read_in_the_middle(apool: farpool.aio.Pool, large: farpool.aio.Slab, turns: int) -> None:
    small = await apool.allocate(4096)
    await small.write(b"small")
    buffer = bytearray(b"\xee" * LARGE)
    task = asyncio.create_task(large.read_into(buffer))
    await begin(task, turns)
    await cancel(task)
    left = bytes(buffer)
    assert left.count(0x5A) + left.count(0xEE) == LARGE
    for _ in range(10):
        assert await small.read(5) == b"small"
    other = bytearray(LARGE)
    assert await large.read_into(other) == LARGE
    assert other.count(0x5A) == LARGE
    assert buffer == left, "the buffer was touched after the cancellation"


async def test_buffer_is_the_callers_again(apool: farpool.aio.Pool, large: farpool.aio.Slab) -> None:
    """It may be filled with other bytes, and with another read, while the cancelled one's answer still comes."""
    small = await apool.allocate(4096)
    await small.write(b"\x11" * 4096)
    buffer = bytearray(LARGE)
    task = asyncio.create_task(large.read_into(buffer))
    await begin(task, 4)
    await cancel(task)
    buffer[:] = b"\x22" * LARGE
    assert await small.read_into(memoryview(buffer)[:4096]) == 4096
    assert await small.read(8) == b"\x11" * 8
    assert buffer == b"\x11" * 4096 + b"\x22" * (LARGE - 4096)


@pytest.mark.parametrize("turns", [0, 1, 4])
async def test_write_in_the_middle(apool: farpool.aio.Pool, large: farpool.aio.Slab, turns: int) -> None:
    """What it has written is unknown, but none of it lands anywhere else, or later than the next write."""
    neighbour = await apool.allocate(4096)
    await neighbour.write(b"\x33" * 4096)
    task = asyncio.create_task(large.write(b"\x77" * LARGE))
    await begin(task, turns)
    await cancel(task)
    await large.write(b"\x44" * MIB)
    await large.write(b"\x55" * 8, LARGE - 8)
    assert await large.read(MIB) == b"\x44" * MIB
    assert await large.read(8, LARGE - 8) == b"\x55" * 8
    rest = await large.read(LARGE - MIB - 8, MIB)
    assert rest.count(0x5A) + rest.count(0x77) == len(rest)
    assert await neighbour.read(4096) == b"\x33" * 4096


async def test_batches_and_words(apool: farpool.aio.Pool, large: farpool.aio.Slab) -> None:
    slab = await apool.allocate(MIB)
    await slab.write(b"\x66" * MIB)
    targets = [(place * 8192, bytearray(b"\xee" * 4096)) for place in range(100)]
    offsets, whole = array("q", [offset for offset, _ in targets]), bytearray(b"\xee" * 409_600)
    operations: list[Any] = [
        lambda: slab.readv(targets),
        lambda: slab.gather(offsets, 4096, whole),
        lambda: slab.load(0),
        lambda: slab.compare_swap(8, 0, 1),
        lambda: slab.read(100_000),
        lambda: large.read(LARGE),
    ]
    for operation in operations:
        for turns in (0, 1, 2):
            task = asyncio.ensure_future(operation())
            await begin(task, turns)
            await cancel(task)
            left = [*(bytes(target) for _, target in targets), bytes(whole)]
            assert await slab.load(MIB - 8) == 0x6666666666666666
            assert await slab.read(16, 8) == b"\x66" * 16
            assert [*(bytes(target) for _, target in targets), bytes(whole)] == left


async def test_storm(apool: farpool.aio.Pool) -> None:
    """Half of many operations are cancelled at random moments: the other half get their own bytes."""
    rng = random.Random(24)
    slab = await apool.allocate(64 * 65536)
    for place in range(64):
        await slab.write(bytes([place]) * 65536, place * 65536)

    async def work(place: int) -> None:
        size = 1 + place * 1000
        data = await slab.read(size, place * 65536)
        assert data == bytes([place]) * size

    for _ in range(10):
        tasks = [asyncio.create_task(work(place)) for place in range(64)]
        doomed = rng.sample(tasks, 32)
        for task in doomed:
            await begin(task, rng.randrange(4))
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for task, outcome in zip(tasks, outcomes, strict=True):
            assert outcome is None or (task in doomed and isinstance(outcome, asyncio.CancelledError)), outcome


async def test_timeout_of_asyncio(apool: farpool.aio.Pool, large: farpool.aio.Slab) -> None:
    for _ in range(5):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await large.read(LARGE)
    assert await large.read(8, LARGE - 8) == b"\x5a" * 8


async def test_closed_in_the_middle(server: EmbeddedServer, transport: str) -> None:
    pool = await farpool.aio.connect(server.url, transport=transport)
    slab = await pool.allocate(LARGE)
    reads = [asyncio.create_task(slab.read(LARGE)) for _ in range(3)]
    await asyncio.sleep(0)
    await pool.close()
    for outcome in await asyncio.gather(*reads, return_exceptions=True):
        ended = (farpool.StaleSlab, farpool.ServerLost, farpool.InvalidArgument)  # the last: the pool is closed
        assert outcome == bytes(LARGE) or isinstance(outcome, ended)
    with pytest.raises(farpool.StaleSlab):
        await slab.read(1)
