"""The client and a real server, over each transport: what a restart, a stop, a fork and an end do to handles."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import farpool
from farpool.client.pool import Pool
from farpool.server.embedded import EmbeddedServer

TRANSPORTS = ["cxl", "tcp"]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EmbeddedServer]:
    """A server for the tests that leave it as it is."""
    with farpool.serve_embedded(capacity="64MiB") as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server for a test that stops or restarts it."""
    with farpool.serve_embedded(capacity="64MiB") as server:
        yield server


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each transport in turn."""
    return str(request.param)


@pytest.fixture
def pool(shared_server: EmbeddedServer, transport: str) -> Iterator[Pool]:
    """A pool of the shared server."""
    with farpool.connect(shared_server.url, transport=transport) as connected:
        yield connected


def test_both_addresses_reach_the_pool(shared_server: EmbeddedServer, transport: str) -> None:
    with (
        farpool.connect(shared_server.url, transport=transport) as local,
        farpool.connect(shared_server.tcp_url, transport=transport) as remote,
    ):
        slab = local.allocate("1MiB", name=f"both {transport}")
        slab.write(b"hello", 4096)
        assert remote.open(slab.id).read(5, 4096) == b"hello"
        assert remote.stat().sessions >= 2
        assert local.transport == remote.transport == transport


def test_auto_takes_cxl_on_one_host(shared_server: EmbeddedServer) -> None:
    with farpool.connect(shared_server.tcp_url) as pool:
        assert pool.transport == "cxl"
        assert [(report.name, report.status) for report in pool.transport_report] == [
            ("cxl", "chosen"),
            ("tcp", "untried"),
        ]


def test_handles_of_one_slab_have_modes_of_their_own(pool: Pool) -> None:
    writer = pool.allocate(4096, name="modes")
    reader = pool.open("modes", mode="r")
    writer.write(b"after")
    assert reader.read(5) == b"after"
    with pytest.raises(farpool.ReadOnly):
        reader.write(b"x")
    with pytest.raises(farpool.ReadOnly):
        reader.store(0, 1)
    reader.close()
    assert writer.read(5) == b"after"


def test_slab_freed_by_another_session_is_stale(shared_server: EmbeddedServer, pool: Pool) -> None:
    """Lessons row 4."""
    slab = pool.allocate(4096, name="gone")
    slab.write(b"bytes")
    with farpool.connect(shared_server.url) as other:
        other.open("gone").free()
        for operation in (lambda: slab.read(1), lambda: slab.write(b"x"), lambda: slab.load(0)):
            with pytest.raises(farpool.StaleSlab):
                operation()
    pool.stat()
    with pytest.raises(farpool.StaleSlab):
        slab.read(1)


def test_end_of_a_session_frees_its_slabs(shared_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(shared_server.url) as other:
        with farpool.connect(shared_server.url, transport=transport) as pool:
            slab = pool.allocate("64KiB", name="ends")
            held = other.open("ends")
        assert not [info for info in other.slabs() if info.id == slab.id and info.state == "live"]
        with pytest.raises(farpool.StaleSlab):
            held.read(1)
        with pytest.raises(farpool.StaleSlab):
            slab.read(1)


def test_pool_full_has_the_numbers(pool: Pool) -> None:
    with pytest.raises(farpool.PoolFull) as caught:
        pool.allocate("1GiB")
    assert caught.value.details["asked"] == 1 << 30
    assert caught.value.details["capacity"] == 64 << 20


def test_name_taken(pool: Pool) -> None:
    pool.allocate(1, name="taken")
    with pytest.raises(farpool.NameTaken):
        pool.allocate(1, name="taken")
    with pytest.raises(farpool.SlabNotFound):
        pool.open("unheard of")


def test_many_slabs(pool: Pool) -> None:
    slabs = pool.allocate_many(["4KiB"] * 200)
    for number, slab in enumerate(slabs):
        slab.store(0, number)
    assert [slab.load(0) for slab in slabs] == list(range(200))
    pool.free_many(slabs)
    with pytest.raises(farpool.StaleSlab):
        slabs[7].load(0)
    assert pool.stat().reclaiming == 0


def test_array(own_server: EmbeddedServer) -> None:
    with farpool.connect(own_server.url, transport="cxl") as pool:
        array = pool.allocate("1MiB", name="array").array("f4", (256, 1024))
        array[3, 4] = 1.5
        assert pool.open("array").read(4, (3 * 1024 + 4) * 4) == array[3, 4].tobytes()
        slab = pool.open("array")
        view = slab.array("u1", 16)
        with pytest.raises(farpool.RegionInUse):
            slab.free()
        del view
    assert array[3, 4] == 1.5, "the array outlives its pool"
    with farpool.connect(own_server.url) as other:
        assert other.stat().reclaiming == 1 << 20, "its bytes are nobody else's while this process may map them"


def test_array_over_tcp(shared_server: EmbeddedServer) -> None:
    with farpool.connect(shared_server.url, transport="tcp") as pool, pytest.raises(farpool.NotMappable):
        pool.allocate(4096).array("u1", 1)


def test_array_of_a_freed_slab_is_safe(own_server: EmbeddedServer) -> None:
    with farpool.connect(own_server.url, transport="cxl") as pool:
        array = pool.allocate(4096, name="orphan").array("u1", 4096)
        with farpool.connect(own_server.url) as other:
            other.open("orphan").free()
            assert other.stat().reclaiming == 4096, "its pages wait until this process lets go"
        array[0] = 1


def test_threads_over_each_transport(pool: Pool) -> None:
    def work(number: int) -> bool:
        slab = pool.allocate("64KiB")
        data = bytes([number]) * 65536
        slab.write(data)
        same = slab.read(65536) == data
        slab.free()
        return same

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(64)))


async def test_aio(shared_server: EmbeddedServer, transport: str) -> None:
    async with farpool.aio.connect(shared_server.url, transport=transport) as pool:
        slab = await pool.allocate("1MiB", name="awaited")
        await slab.write(b"hello", 4096)
        assert await slab.read(5, 4096) == b"hello"
        async with await pool.open("awaited", mode="r") as reader:
            with pytest.raises(farpool.ReadOnly):
                await reader.write(b"x")
        await slab.free()
        with pytest.raises(farpool.StaleSlab):
            await slab.read(1)


# Restarts and stops ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_client_goes_on_after_a_restart(own_server: EmbeddedServer, transport: str, how: str) -> None:
    """Lessons row 12."""
    with farpool.connect(own_server.url, transport=transport) as pool:
        kept = pool.allocate("64KiB", name="kept", lease="persistent")
        kept.write(b"kept")
        mine = pool.allocate("64KiB", name="mine")
        mine.write(b"mine")
        session = pool.session_id
        if how == "kill":
            own_server.kill()
            own_server.start()
            assert mine.read(4) == b"mine", "30 s are given to resume the session"
        else:
            own_server.restart()
        assert kept.read(4) == b"kept"
        assert pool.open("kept", mode="r").read(4) == b"kept"
        assert pool.epoch == 2
        if how == "kill":
            assert pool.session_id == session
            assert pool.open("mine").read(4) == b"mine"
        kept.free()


def test_stopped_server_meets_the_deadline(own_server: EmbeddedServer) -> None:
    """Lessons row 13."""
    with farpool.connect(own_server.url) as pool:
        own_server.suspend()
        try:
            with pytest.raises(farpool.DeadlineExceeded):
                pool.stat(timeout=0.2)
            with pytest.raises(farpool.DeadlineExceeded):
                pool.allocate(4096, lease="persistent", timeout=0.2)
        finally:
            own_server.resume()
        assert pool.allocate(4096, name="after").read(1) == b"\0"
        pool.stat()
        assert [info.name for info in pool.slabs()] == ["after"], "the slab that nobody got was freed"


def test_dead_server_is_lost_at_the_deadline(own_server: EmbeddedServer) -> None:
    """Lessons row 14."""
    with farpool.connect(own_server.url) as pool:
        own_server.kill()
        with pytest.raises(farpool.ServerLost, match="gone"):
            pool.stat(timeout=0.3)
        own_server.start()
        assert pool.stat().epoch == 2


# Forks ----------------------------------------------------------------------------------------------


def in_child(check: Callable[[], None]) -> int:
    """Run *check* in a fork; return 0 if it held."""
    child = os.fork()
    if not child:
        signal.alarm(20)
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 warns of forks beside threads")
def test_forked_child_gets_an_error_and_harms_nobody(shared_server: EmbeddedServer, pool: Pool) -> None:
    slab = pool.allocate(4096, name="parent's")
    slab.write(b"parent")

    def child() -> None:
        for call in (pool.stat, pool.slabs, lambda: pool.allocate(1), slab.free, lambda: slab.read(1)):
            with pytest.raises(farpool.ForkedSession):
                call()
        slab.close()
        pool.close()
        with farpool.connect(shared_server.url, transport=pool.transport) as own:
            assert own.open(slab.id).read(6) == b"parent"

    assert in_child(child) == 0
    assert slab.read(6) == b"parent"
    assert pool.open("parent's").read(6) == b"parent"
    slab.free()
