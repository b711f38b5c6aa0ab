"""One pool and one slab in many hands at once: threads, tasks, a forked child."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import farpool
import farpool.aio

if TYPE_CHECKING:
    from tests.conformance.conftest import StartChild

    from farpool.server.embedded import EmbeddedServer

THREADS = 8
ROUNDS = 20
PLACE = 96 << 10
"""Bytes that each worker has for itself; more than what goes in one piece anywhere."""


def in_threads(work: Callable[[int], object]) -> None:
    """Run *work* in eight threads that start together; raise what any of them raises."""
    start = threading.Barrier(THREADS)

    def begin(number: int) -> None:
        start.wait(30)
        work(number)

    with ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(begin, number) for number in range(THREADS)]:
            done.result(60)


def test_threads_share_a_slab(server: EmbeddedServer, transport: str) -> None:
    """Each works in a place of its own and on one word of all; nobody gets another's bytes."""
    with farpool.connect(server.url, transport=transport) as pool:
        slab = pool.allocate(THREADS * PLACE + 8)
        word = THREADS * PLACE

        def work(number: int) -> None:
            mine, rng = number * PLACE, random.Random(number)
            for round_number in range(ROUNDS):
                size = rng.choice((1, 100, 4096, PLACE))
                data = bytes([number + 1, round_number]) * (size // 2 + 1)
                slab.write(data[:size], mine)
                assert slab.read(size, mine) == data[:size]
                parts = [(mine + place * 64, bytes([number, place]) * 8) for place in range(20)]
                slab.writev(parts)
                targets = [(place, bytearray(16)) for place, _ in parts]
                slab.readv(targets)
                assert [bytes(target) for _, target in targets] == [part for _, part in parts]
                slab.fetch_add(word, number)

        in_threads(work)
        assert slab.load(word) == ROUNDS * sum(range(THREADS))


def test_threads_share_a_pool(server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(server.url, transport=transport) as pool:

        def work(number: int) -> None:
            for round_number in range(10):
                slab = pool.allocate(4096, name=f"thread {number}")
                slab.write(bytes([number, round_number]))
                with pool.open(f"thread {number}", mode="r") as reader:
                    assert reader.read(2) == bytes([number, round_number])
                slab.free()

        in_threads(work)
        assert [slab for slab in pool.slabs() if slab.state != "reclaiming"] == []


def test_closed_by_another_thread(server: EmbeddedServer, transport: str) -> None:
    """Whoever is in the middle of a batch ends it, or learns that the slab is closed."""
    with farpool.connect(server.url, transport=transport) as pool:
        for _ in range(20):
            slab = pool.allocate("1MiB")
            slab.write(b"\x11" * slab.nbytes)
            running = threading.Event()

            def work(number: int, slab: farpool.Slab = slab, running: threading.Event = running) -> None:
                if number == 0:
                    assert running.wait(30)
                    slab.close()
                parts = [(start, bytearray(1 << 17)) for start in range(0, 1 << 20, 1 << 17)]
                try:
                    while True:
                        assert slab.readv(parts) == 1 << 20
                        assert all(part.count(0x11) == 1 << 17 for _, part in parts)
                        running.set()
                except farpool.StaleSlab:
                    pass

            in_threads(work)
        assert pool.stat().sessions >= 1


async def test_tasks_share_a_slab(server: EmbeddedServer, transport: str) -> None:
    async with farpool.aio.connect(server.url, transport=transport) as pool:
        slab = await pool.allocate(64 * 4096 + 8)

        async def work(number: int) -> None:
            data = bytes([number]) * (1 + number * 60)
            buffer = bytearray(len(data))
            for _ in range(5):
                await slab.write(data, number * 4096)
                assert await slab.read_into(buffer, number * 4096) == len(data)
                assert buffer == data
                assert await slab.readv([(number * 4096, buffer), (number * 4096 + 8, bytearray(8))]) == len(data) + 8
                assert buffer == data
                await slab.fetch_add(64 * 4096, number)

        await asyncio.gather(*(work(number) for number in range(64)))
        assert await slab.load(64 * 4096) == 5 * sum(range(64))


async def test_operations_of_one_task_take_effect_in_order(server: EmbeddedServer, transport: str) -> None:
    async with farpool.aio.connect(server.url, transport=transport) as pool:
        slab = await pool.allocate(4096)
        for number in range(100):
            await slab.store(8, number)
            assert await slab.load(8) == number
            assert await slab.read(8, 8) == number.to_bytes(8, "little")


async def test_both_apis_and_many_loops(server: EmbeddedServer, transport: str) -> None:
    """A second loop, in a thread, has connections of its own."""
    async with farpool.aio.connect(server.url, transport=transport) as pool:
        slab = await pool.allocate(4096, name="loops")

        async def elsewhere() -> bytes:
            async with farpool.aio.connect(server.url, transport=transport) as second:
                twin = await second.open("loops")
                await twin.write(b"second", 8)
                return await twin.read(5)

        await slab.write(b"first")
        assert await asyncio.to_thread(asyncio.run, elsewhere()) == b"first"
        assert await slab.read(6, 8) == b"second"


def test_fork(server: EmbeddedServer, transport: str, start_child: StartChild) -> None:
    """The child gets ``ForkedSession`` and connects for itself; the parent goes on undisturbed."""
    child = start_child("fork", server.url, transport, server.url)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "done\n"), err
