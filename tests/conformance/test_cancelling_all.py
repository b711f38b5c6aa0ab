"""Calls of every kind, many of them cancelled at random moments: the others get what is theirs, and nothing is left.

Seeded, so that what fails is found again: the seed is in the test's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

import farpool
import farpool.aio

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

PLACES = 16
STRIDE = 40_000
"""Bytes of a place: more than one system call takes now and then, and not a multiple of anything."""
COUNTER = 7
CALLS = 48
ROUNDS = 6
WITHIN = 20.0


def bytes_of(place: int, length: int = STRIDE) -> bytes:
    """Return what a place holds, whatever is cancelled: a writer of it writes the same again."""
    return bytes([place + 1]) * length


@pytest_asyncio.fixture
async def apool(server: EmbeddedServer, transport: str) -> AsyncIterator[farpool.aio.Pool]:
    async with farpool.aio.connect(server.url, transport=transport, timeout=30) as pool:
        yield pool


class Bench:
    """A pool, a slab that is written to and one that changes by commits, and what can be done with them."""

    def __init__(self, pool: farpool.aio.Pool, plain: farpool.aio.Slab, committed: farpool.aio.Slab) -> None:
        self.pool = pool
        self.plain = plain
        self.committed = committed
        self.made: list[farpool.aio.Slab | farpool.aio.Draft] = []
        """What calls that were not cancelled have made."""

    async def read(self, place: int) -> None:
        length = 1 + place * 2000
        assert await self.plain.read(length, place * STRIDE) == bytes_of(place, length)

    async def read_verified(self, place: int) -> None:
        assert await self.committed.read(STRIDE, place * STRIDE) == bytes_of(place)

    async def readv(self, place: int) -> None:
        targets = [bytearray(100 + number) for number in range(8)]
        await self.plain.readv([(place * STRIDE + number * 500, target) for number, target in enumerate(targets)])
        assert targets == [bytearray(bytes_of(place, len(target))) for target in targets]

    async def write(self, place: int) -> None:
        assert await self.plain.write(bytes_of(place), place * STRIDE) == STRIDE

    async def writev(self, place: int) -> None:
        await self.plain.writev([(place * STRIDE + at, bytes_of(place, 300)) for at in range(0, STRIDE - 300, 5000)])

    async def gather(self, place: int) -> None:
        target = bytearray(STRIDE)
        await self.plain.gather(array("q", range(place * STRIDE, (place + 1) * STRIDE, 8)), 8, target)
        assert target == bytes_of(place)

    async def scatter(self, place: int) -> None:
        await self.plain.scatter(array("q", range(place * STRIDE, (place + 1) * STRIDE, 10)), 10, bytes_of(place))

    async def words(self, place: int) -> None:
        assert await self.plain.fetch_add(PLACES * STRIDE, 0) == COUNTER
        assert await self.plain.load(PLACES * STRIDE) == COUNTER

    async def wait(self, place: int) -> None:
        with contextlib.suppress(farpool.DeadlineExceeded):
            await self.plain.wait(PLACES * STRIDE, COUNTER, timeout=0.05)
            pytest.fail("nobody has changed the word")

    async def allocate(self, place: int) -> None:
        self.made.append(await self.pool.allocate(64 + place))

    async def reserve(self, place: int) -> None:
        self.made.append(await self.committed.reserve(checksum=bool(place % 2)))

    async def open(self, place: int) -> None:
        slab = await self.pool.open(self.plain.id, mode="r")
        try:
            assert await slab.read(10, place * STRIDE) == bytes_of(place, 10)
        finally:
            slab.close()

    async def look(self, place: int) -> None:
        assert (await self.pool.stat()).slabs >= 2
        assert self.plain.id in [slab.id for slab in await self.pool.slabs()]

    def works(self) -> list[Callable[[int], Awaitable[None]]]:
        data = [self.read, self.read_verified, self.readv, self.write, self.writev]
        data += [self.gather, self.scatter, self.words]
        return [*data, self.wait, self.allocate, self.reserve, self.open, self.look]


@pytest_asyncio.fixture
async def bench(apool: farpool.aio.Pool) -> Bench:
    plain, committed = await apool.allocate(PLACES * STRIDE + 8), await apool.allocate(PLACES * STRIDE)
    async with committed.reserve() as draft:
        for place in range(PLACES):
            await plain.write(bytes_of(place), place * STRIDE)
            await draft.write(bytes_of(place), place * STRIDE)
        await draft.commit()
    await plain.store(PLACES * STRIDE, COUNTER)
    await committed.read(1)
    return Bench(apool, plain, committed)


@pytest.mark.parametrize("seed", range(4))
async def test_the_others_get_what_is_theirs_and_nothing_is_left(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    before = (await bench.pool.stat()).slabs
    for _ in range(ROUNDS):
        works = bench.works()
        tasks = [asyncio.ensure_future(rng.choice(works)(rng.randrange(PLACES))) for _ in range(CALLS)]
        doomed = rng.sample(tasks, CALLS // 2)
        for task in doomed:
            await asyncio.sleep(rng.choice([0, 0, 0.0003, 0.002]))
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for task, outcome in zip(tasks, outcomes, strict=True):
            assert outcome is None or (task in doomed and isinstance(outcome, asyncio.CancelledError)), outcome
        for place in range(PLACES):
            await bench.read(place)
            await bench.read_verified(place)
        for made in bench.made:
            await (made.free() if isinstance(made, farpool.aio.Slab) else made.close())
        bench.made.clear()
    end = time.monotonic() + WITHIN
    while (left := (await bench.pool.stat()).slabs) != before:  # what was cancelled is given back behind its reply
        assert time.monotonic() < end, f"{left - before} slabs of cancelled calls are left"
        await asyncio.sleep(0.02)
