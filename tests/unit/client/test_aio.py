"""The awaitable twins: the same names, and what a cancelled or forgotten call leaves behind: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import pytest_asyncio
from tests.unit.client.scripted_server import ScriptedServer

import farpool.aio
from farpool.client import aio
from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, RegionInUse, ServerLost, SlabNotFound, StaleSlab
from farpool.protocol.messages import Allocate, Detach, Free, Goodbye, Hello, Open, Stat

MakePool = Callable[[ThreadPoolExecutor], aio.Pool]


@pytest_asyncio.fixture
async def apool(make_aio_pool: MakePool) -> AsyncIterator[aio.Pool]:
    """An awaitable pool that is connected to ``server``."""
    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        yield pool


async def in_thread(function: Callable[..., object], *arguments: object) -> None:
    """Wait in a thread for what the server's threads bring about."""
    await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def test_same_names(server: ScriptedServer, apool: aio.Pool) -> None:
    slab = await apool.allocate("4KiB", name="a")
    assert await slab.write(b"hello", 8) == 5
    assert await slab.read(5, 8) == b"hello"
    buffer = bytearray(5)
    assert await slab.read_into(buffer, 8) == 5
    assert await slab.writev([(0, b"x"), (1, b"y")]) == 2
    assert await slab.readv([(0, buffer)]) == 5
    await slab.store(64, 5)
    assert await slab.fetch_add(64, 2) == 5
    assert await slab.compare_swap(64, expected=7, new=1) == 7
    assert await slab.load(64) == 1
    assert slab.array("u1", 2).tobytes() == b"xy"
    assert repr(slab) == "<farpool.aio.Slab 'a' #1 4096 bytes rw over plain>"
    assert repr(apool) == f"<farpool.aio.Pool {apool.url} over plain, open>"
    async with await apool.open("a", mode="r") as reader:
        assert reader.mode == "r"
    many = await apool.allocate_many([1, 2, 3])
    assert [info.id for info in await apool.slabs()] == [1, 2, 3, 4]
    await apool.free_many(many)
    assert (await apool.stat()).slabs == 1
    await slab.free()
    with pytest.raises(StaleSlab):
        await slab.read(1)
    with pytest.raises(SlabNotFound):
        await slab.free()


async def test_cancelled_allocate_leaves_no_slab(server: ScriptedServer, apool: aio.Pool) -> None:
    """Lessons row 24."""
    held = server.hold(Allocate)
    waiting = asyncio.create_task(apool.allocate(4096, lease="persistent"))
    await in_thread(server.seen, Allocate)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.answer(*held[0])
    await in_thread(server.seen, Free)
    assert (await apool.stat()).slabs == 0


async def test_cancelled_open_detaches(server: ScriptedServer, apool: aio.Pool) -> None:
    """Lessons row 24."""
    await (await apool.allocate(8, name="a", lease="persistent")).close()
    await in_thread(server.seen, Detach)
    held = server.hold(Open)
    waiting = asyncio.create_task(apool.open("a"))
    await in_thread(server.seen, Open)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    server.answer(*held[0])
    await in_thread(server.seen, Detach, 2)


async def test_cancelled_call_gives_its_reply_to_nobody(server: ScriptedServer, apool: aio.Pool) -> None:
    """Lessons row 24."""
    held = server.hold(Allocate)
    cancelled = asyncio.create_task(apool.allocate(1))
    await in_thread(server.seen, Allocate)
    kept = asyncio.create_task(apool.allocate(2))
    await in_thread(server.seen, Allocate, 2)
    cancelled.cancel()
    for request in held:
        server.answer(*request)
    assert (await kept).nbytes == 2


async def test_close_without_await_ends_the_session(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    """Lessons row 24."""
    pool = make_aio_pool(ThreadPoolExecutor(4))
    slab = await pool.allocate(8)
    pool.close()
    await in_thread(server.seen, Goodbye)
    await pool.close()
    with pytest.raises(StaleSlab):
        await slab.read(1)
    with pytest.raises(InvalidArgument, match="closed"):
        await pool.stat()
    assert len(server.seen(Goodbye)) == 1


async def test_slab_closed_without_await(server: ScriptedServer, apool: aio.Pool) -> None:
    """Lessons row 24."""
    slab = await apool.allocate(8)
    slab.close()
    await in_thread(server.seen, Detach)
    await slab.close()


async def test_close_under_a_view(apool: aio.Pool) -> None:
    slab = await apool.allocate(8)
    view = slab.view()
    with pytest.raises(RegionInUse):
        slab.close()
    with pytest.raises(RegionInUse):
        await slab.free()
    view.release()
    await slab.free()


async def test_close_ends_calls_that_wait(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    server.hold(Allocate)
    pool = make_aio_pool(ThreadPoolExecutor(4))
    waiting = [asyncio.create_task(pool.allocate(1)) for _ in range(6)]
    await in_thread(server.seen, Allocate, 4)
    await pool.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {ServerLost, InvalidArgument}


async def test_deadline_counts_in_the_queue(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    """A call that finds every thread taken ends at its own deadline, and is never sent."""
    held = server.hold(Stat)
    async with make_aio_pool(ThreadPoolExecutor(1)) as pool:
        first = asyncio.create_task(pool.stat())
        await in_thread(server.seen, Stat)
        with pytest.raises(DeadlineExceeded, match="not sent"):
            await pool.allocate(1, timeout=0.05)
        assert not first.done()
        server.answer(*held[0])
        await first
        assert not server.slabs


async def test_cancelled_in_the_queue(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    held = server.hold(Stat)
    async with make_aio_pool(ThreadPoolExecutor(1)) as pool:
        first = asyncio.create_task(pool.stat())
        await in_thread(server.seen, Stat)
        queued = asyncio.create_task(pool.allocate(1))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        server.answer(*held[0])
        await first
        assert not server.slabs


async def test_cancelled_allocate_many_frees_all_in_one_go(server: ScriptedServer, apool: aio.Pool) -> None:
    held = server.hold(Allocate)
    waiting = asyncio.create_task(apool.allocate_many([1] * 5, lease="persistent"))
    await in_thread(server.seen, Allocate, 5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for request in held:
        server.answer(*request)
    await in_thread(server.seen, Free, 5)
    assert (await apool.stat()).slabs == 0
    assert not [request for _, request in server.requests if isinstance(request, Detach)], "Free says both"


async def fail_within(slab: aio.Slab) -> None:
    async with slab:
        raise KeyError("mine")


async def test_error_in_a_block_is_not_replaced(apool: aio.Pool) -> None:
    slab = await apool.allocate(8)
    view = slab.view()
    with pytest.raises(KeyError, match="mine"):
        await fail_within(slab)
    view.release()


async def test_free_many_of_what_is_no_slab(apool: aio.Pool) -> None:
    with pytest.raises(InvalidArgument, match="takes slabs"):
        await apool.free_many([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def test_pool_that_is_dropped_warns_and_ends(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    pool = make_aio_pool(ThreadPoolExecutor(4))
    with pytest.warns(ResourceWarning, match=r"farpool\.aio\.Pool"):
        del pool
    await in_thread(server.seen, Goodbye)


async def test_connect_to_nobody(server: ScriptedServer) -> None:
    server.stop()
    with pytest.raises(ServerLost, match="farpool serve"):
        await farpool.aio.connect(f"unix://{server.path}")
    with pytest.raises(ServerLost, match="farpool serve"):
        async with farpool.aio.connect(f"unix://{server.path}"):
            pytest.fail("there is no server")


async def test_cancelled_connect(server: ScriptedServer) -> None:
    server.hold(Hello)
    waiting = asyncio.create_task(anext_pool(server))
    await in_thread(server.seen, Hello)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def anext_pool(server: ScriptedServer) -> aio.Pool:
    return await farpool.aio.connect(f"unix://{server.path}", timeout=0.3)
