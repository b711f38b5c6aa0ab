"""Closing: as often as one likes, from any thread, in a finalizer, as the interpreter ends; and nothing is pinned."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import links_of, settle
from tests.faults.conftest import APIS, TRANSPORTS, Serve, ends_in_time, until
from tests.faults.test_never_hangs import result_of

import farpool
import farpool.aio
from farpool.client.session import GOODBYE_SECONDS
from farpool.server.embedded import EmbeddedServer
from farpool.transports.threads import MOST_THREADS

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)

AMPLE = 30.0
THREADS = 8


class Opened:
    """A pool with a slab of which another handle is open, and a draft."""

    def __init__(self, pool: Any, slab: Any, handle: Any, draft: Any) -> None:
        self.pool = pool
        self.slab = slab
        self.handle = handle
        self.draft = draft

    def in_order(self) -> list[Any]:
        """Return what can be closed, the pool last."""
        return [self.draft, self.handle, self.slab, self.pool]


async def opened(server: EmbeddedServer, transport: str, api: str) -> Opened:
    """Open one of each, by either API, and use it."""
    connect: Any = farpool.connect if api == "sync" else farpool.aio.connect
    pool = await result_of(connect(server.url, transport=transport, timeout=AMPLE))
    slab = await result_of(pool.allocate(4096))
    handle = await result_of(pool.open(slab.id))
    draft = await result_of(slab.reserve())
    for each in (slab, handle, draft):
        await result_of(each.write(b"word"))
    return Opened(pool, slab, handle, draft)


def mapped() -> list[str]:
    """Return what this process has mapped of slabs."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/slab-" in line]


@pytest.mark.parametrize("api", APIS)
async def test_again_and_from_many_threads_at_once(serve: Serve, transport: str, api: str) -> None:
    of = await opened(serve(transports=[transport]), transport, api)
    with ThreadPoolExecutor(THREADS) as threads:
        for each in of.in_order():
            begin = threading.Barrier(THREADS)

            def close(each: Any = each, begin: threading.Barrier = begin) -> object:
                begin.wait()
                return each.close()

            results = await asyncio.gather(*(asyncio.wrap_future(threads.submit(close)) for _ in range(THREADS)))
            for result in results:
                assert await result_of(result) is None
            assert await result_of(each.close()) is None
    for each in of.in_order():
        assert await result_of(each.close()) is None
    assert of.pool.closed


@pytest.mark.parametrize("api", APIS)
async def test_what_is_closed_pins_nothing(serve: Serve, transport: str, api: str) -> None:
    server = serve(transports=[transport])
    before = set(links_of("self")), {thread.ident for thread in threading.enumerate()}
    of = await opened(server, transport, api)
    for each in of.in_order():
        await result_of(each.close())
    # What is left is in our hands: the objects, and nothing behind them.
    assert not mapped()
    assert not settle(lambda: set(links_of("self")), before[0])
    assert not settle(lambda: {thread.ident for thread in threading.enumerate()}, before[1])
    watched = [weakref.ref(each) for each in (of.pool, of.draft.attachment.region, of.slab.attachment.region)]
    each = None
    of = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    await asyncio.sleep(0)  # the loop holds what it has woken this task with
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)


@pytest.mark.parametrize("api", APIS)
async def test_what_is_dropped_is_let_go(serve: Serve, transport: str, api: str) -> None:
    """Handles that are never closed: the next request tells the server."""
    server = serve(transports=[transport])
    of = await opened(server, transport, api)
    pool, watched = of.pool, [weakref.ref(each.attachment.region) for each in (of.slab, of.handle, of.draft)]
    of = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    await asyncio.sleep(0)  # the loop holds what it has woken this task with
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)
    assert not mapped()
    await result_of(pool.stat())
    assert [slab.attached for slab in await result_of(pool.slabs())] == [0]
    await result_of(pool.close())


class Finalized:
    """What closes something when the collector takes it, as an application's class may."""

    def __init__(self, closes: Any, closed: list[object]) -> None:
        self.closes = closes
        self.closed = closed
        self.itself = self

    def __del__(self) -> None:
        self.closed.append(self.closes.close())


@pytest.mark.parametrize("api", APIS)
async def test_in_a_finalizer(serve: Serve, transport: str, api: str) -> None:
    """The collector takes it in the middle of another call, in whichever thread that is."""
    server = serve(transports=[transport])
    with farpool.connect(server.url, transport=transport) as other:
        for _ in range(3):
            of = await opened(server, transport, api)
            closed: list[object] = []
            for each in of.in_order():
                Finalized(each, closed)
                del each
                with ThreadPoolExecutor(2) as threads:
                    taken = threads.submit(gc.collect)
                    other.allocate(64).free()
                    taken.result()
            assert len(closed) == 4
            until(partial(getattr, of.pool, "closed"), "the pool is closed")
        until(lambda: other.stat().slabs == 0, "the slabs and drafts of closed pools are gone")


@pytest.fixture
def eager_collector() -> Iterator[None]:
    """Let the collector run as often as it can."""
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("eager_collector")
def test_finalizers_in_the_middle_of_every_call(serve: Serve, transport: str) -> None:
    """Slabs are closed by the collector while their own pool's calls hold its locks."""
    server = serve(transports=[transport])
    unraised: list[object] = []

    def note(what: Any) -> None:
        unraised.append(what.exc_value)

    before, sys.unraisablehook = sys.unraisablehook, note
    try:
        with farpool.connect(server.url, transport=transport, timeout=AMPLE) as pool:
            slab = pool.allocate(4096, name="kept")
            for number in range(60):
                Finalized(pool.open("kept"), [])
                Finalized(pool.allocate(64), [])
                pool.open("kept").close()
                slab.store(0, number)
                assert slab.load(0) == number
            gc.collect()
            pool.stat()
    finally:
        sys.unraisablehook = before
    assert not unraised


FINALIZERS = Path(__file__).with_name("finalizers.py")


@pytest.mark.parametrize("what", ["pool", "slab", "draft"])
@pytest.mark.parametrize("api", APIS)
def test_finalizers_at_every_place(serve: Serve, transport: str, api: str, what: str) -> None:
    """The collector runs in a thread that holds some lock, of concurrent.futures perhaps: it is not waited for."""
    server = serve(transports=[transport])
    command = [sys.executable, str(FINALIZERS), server.url, transport, api, what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_handle_that_another_thread_looks_for(serve: Serve, transport: str) -> None:
    """Its memory was replaced, and the server says nothing: close does not wait for the thread that asks."""
    server = serve(transports=[transport])
    with farpool.connect(server.url, transport=transport, timeout=AMPLE) as pool, ThreadPoolExecutor(1) as threads:
        slab = pool.allocate(4096, name="moved")
        slab.write(b"word")
        with farpool.connect(server.url, transport=transport) as other, other.open("moved").reserve() as draft:
            draft.write(b"next")
            draft.commit()
        server.suspend()
        read = threads.submit(slab.read, 4, 0, 8.0)
        time.sleep(0.3)
        with ends_in_time(1.0, "close"):
            slab.close()
        server.resume()
        with pytest.raises(farpool.StaleSlab):
            read.result()
        pool.stat()
        assert [info.attached for info in pool.slabs()] == [0]


def test_a_draft_whose_views_live_is_not_closed(serve: Serve, transport: str) -> None:
    if transport != "cxl":
        pytest.skip("this transport shows no memory")
    server = serve(transports=[transport])
    with farpool.connect(server.url, transport=transport) as pool:
        draft = pool.allocate(4096).reserve()
        view = draft.view()
        with pytest.raises(farpool.RegionInUse):
            draft.close()
        assert not draft.committed
        view.release()
        del view
        draft.close()
        assert pool.stat().slabs == 1


@pytest.mark.parametrize("api", APIS)
async def test_a_draft_is_closed_while_the_server_is_stopped(serve: Serve, transport: str, api: str) -> None:
    """It takes no longer than the end of a pool, and the server hears of it when it goes on."""
    server = serve(transports=[transport])
    with farpool.connect(server.url, transport=transport) as other:
        of = await opened(server, transport, api)
        server.suspend()
        with ends_in_time(GOODBYE_SECONDS, "close"):
            assert await result_of(of.draft.close()) is None
        server.resume()
        until(lambda: other.stat().slabs == 1, "the draft is gone")
        await result_of(of.pool.close())


async def test_a_draft_is_closed_while_all_threads_are_busy(serve: Serve, transport: str) -> None:
    """Its turn comes too late for an answer: the server is told all the same, before the session ends."""
    server = serve(transports=[transport])
    with farpool.connect(server.url, transport=transport) as other:
        of = await opened(server, transport, "aio")
        server.suspend()
        calls = [asyncio.ensure_future(of.pool.stat(timeout=3.0)) for _ in range(MOST_THREADS)]
        await asyncio.sleep(0.1)
        with ends_in_time(GOODBYE_SECONDS, "close"):
            await of.draft.close()
        await asyncio.gather(*calls, return_exceptions=True)
        server.resume()
        until(lambda: other.stat().slabs == 1, "the draft is gone")
        await of.pool.close()


AT_EXIT = """
import asyncio, sys
import farpool, farpool.aio
url, transport, api = sys.argv[1:]

class Closes:
    def __init__(self, *closed): self.closed = closed
    def __del__(self):
        for each in self.closed: each.close()

async def by_aio():
    pool = await farpool.aio.connect(url, transport=transport)
    slab = await pool.allocate(64)
    return Closes(await slab.reserve(), slab, pool)

def by_sync():
    pool = farpool.connect(url, transport=transport)
    slab = pool.allocate(64)
    return Closes(slab.reserve(), slab, pool)

sys.modules["kept"] = by_sync() if api == "sync" else asyncio.run(by_aio())
"""


@pytest.mark.parametrize("api", APIS)
def test_as_the_interpreter_ends(serve: Serve, transport: str, api: str) -> None:
    server = serve(transports=[transport])
    command = [sys.executable, "-c", AT_EXIT, server.url, transport, api]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with farpool.connect(server.url, transport=transport) as pool:
        until(lambda: pool.stat().slabs == 0, "the slabs of the process are gone")
