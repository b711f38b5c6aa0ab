"""Handles: what they know, how arrays are made of them, and how they are let go."""

from __future__ import annotations

import copy
import gc
import inspect
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from tests.unit.client.plain_transport import PlainTransport
from tests.unit.client.scripted_server import Peer, ScriptedServer

from farpool.client.pool import Pool
from farpool.client.slab import Slab
from farpool.protocol.errors import (
    InvalidArgument,
    NotMappable,
    OutOfBounds,
    PoolFull,
    ReadOnly,
    RegionInUse,
    ServerLost,
    SlabNotFound,
    StaleSlab,
    TransportUnavailable,
)
from farpool.protocol.messages import Allocate, Attach, Detach, Free, Open, Request, Stat


def test_facts(pool: Pool) -> None:
    slab = pool.allocate("4KiB", name="weights", lease=2.5)
    assert (slab.nbytes, slab.name, slab.lease, slab.mode, slab.transport) == (4096, "weights", 2.5, "rw", "plain")
    assert (slab.id, slab.generation) == (1, 101)
    assert repr(slab) == "<farpool.Slab 'weights' #1 4096 bytes rw over plain>"
    assert repr(pool) == f"<farpool.Pool {pool.url} over plain, open>"
    assert not hasattr(slab, "__dict__")


def test_data_methods_are_the_regions_own(pool: Pool) -> None:
    slab = pool.allocate(64)
    region = slab.attachment.region
    for name in Slab.__slots__:
        assert getattr(slab, name) == getattr(region, name, getattr(slab, name))
        doc = inspect.getdoc(getattr(Slab, name))
        assert doc is not None
        assert doc.startswith(f"``{name}("), "help(farpool.Slab) shows how it is called"


def test_a_region_that_does_not_gather_is_asked_for_batches(pool: Pool) -> None:
    slab = pool.allocate(64)
    assert not hasattr(slab.attachment.region, "gather")
    assert slab.scatter(array("q", [8, 0]), 4, b"seco" + b"one.") == 8
    out = bytearray(4)
    assert slab.gather(array("q", [0, 9]), 2, out) == 4
    assert out == b"on" + b"ec"


def test_slabs_are_listed_over_pages(pool: Pool) -> None:
    made = [pool.allocate(1) for _ in range(5)]
    assert [info.id for info in pool.slabs()] == [slab.id for slab in made]


@pytest.mark.parametrize("nbytes", [0, -1, "12XB", 1.5, True, None, 1 << 62])
def test_sizes_that_cannot_be(server: ScriptedServer, pool: Pool, nbytes: int) -> None:
    with pytest.raises(InvalidArgument):
        pool.allocate(nbytes)
    assert not server.slabs


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, "\udc80", 7, "1"])
def test_names_that_cannot_be(pool: Pool, name: str) -> None:
    with pytest.raises(InvalidArgument):
        pool.allocate(1, name=name)


@pytest.mark.parametrize("lease", ["for ever", 0, -1, float("inf")])
def test_leases_that_cannot_be(pool: Pool, lease: float) -> None:
    with pytest.raises(InvalidArgument, match="lease"):
        pool.allocate(1, lease=lease)


@pytest.mark.parametrize("wanted", [0, -1, True, 1.5, None, b"weights", 1 << 70])
def test_ids_that_cannot_be(pool: Pool, wanted: int) -> None:
    with pytest.raises(InvalidArgument):
        pool.open(wanted)


def test_mode(pool: Pool) -> None:
    slab = pool.allocate(8, name="a")
    with pool.open("a", mode="r") as reader, pytest.raises(ReadOnly):
        reader.write(b"x")
    with pytest.raises(InvalidArgument, match="mode"):
        pool.open(slab.id, mode="w")
    with pytest.raises(SlabNotFound):
        pool.open("b")


def test_a_reader_frees_nothing(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(8, name="a")
    reader = pool.open("a", mode="r")
    with pytest.raises(ReadOnly, match='mode "rw"'):
        reader.free()
    with pytest.raises(ReadOnly):
        pool.free_many([reader])
    assert reader.read(1) == b"\0"
    assert slab.id in server.slabs
    slab.free()


def test_free_many_of_what_is_no_slab(pool: Pool) -> None:
    with pytest.raises(InvalidArgument, match="takes slabs"):
        pool.free_many([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, ForkingPickler.dumps])
def test_handles_are_neither_copied_nor_pickled(pool: Pool, duplicate: Callable[[object], object]) -> None:
    for handle, hint in ((pool, "connect again"), (pool.allocate(8), "name or id")):
        with pytest.raises(TypeError, match=hint):
            duplicate(handle)


def test_error_in_a_block_is_not_replaced(pool: Pool) -> None:
    slab = pool.allocate(8)
    view = slab.view()
    with pytest.raises(KeyError, match="mine"), slab:
        raise KeyError("mine")
    assert slab.read(1) == b"\0", "it stays attached"
    with pytest.raises(RegionInUse), slab:
        pass
    view.release()
    slab.close()


# Arrays ---------------------------------------------------------------------------------------------


def test_array_is_the_memory_itself(pool: Pool) -> None:
    slab = pool.allocate(4096)
    array = slab.array("f4", (4, 8), offset=64)
    array[1, 2] = 7.0
    assert slab.read(4, 64 + 40) == np.float32(7.0).tobytes()
    assert slab.array("u1", 0, offset=4096).size == 0
    assert slab.array(np.int64, []).shape == ()
    with pytest.raises(RegionInUse):
        slab.close()
    with pytest.raises(RegionInUse):
        slab.free()
    assert slab.read(1) is not None
    del array
    slab.free()


def test_array_of_a_reader_is_read_only(pool: Pool) -> None:
    pool.allocate(8, name="a")
    array = pool.open("a", mode="r").array("u1", 8)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize(("shape", "offset"), [(1025, 0), (1, 4096), (1, -4), ((2, 600), 0)])
def test_array_past_the_end(pool: Pool, shape: int | tuple[int, int], offset: int) -> None:
    with pytest.raises(OutOfBounds):
        pool.allocate(4096).array("f4", shape, offset)


def test_arrays_that_cannot_be(pool: Pool) -> None:
    slab = pool.allocate(4096)
    with pytest.raises(InvalidArgument, match="objects"):
        slab.array(object, 1)
    with pytest.raises(InvalidArgument, match="negative"):
        slab.array("u1", (-1,))
    unmappable = pool.allocate(8, name="unmappable")
    with pytest.raises(NotMappable):
        unmappable.array("u1", 8)
    with pytest.raises(NotMappable):
        unmappable.map()


def test_map(pool: Pool) -> None:
    slab = pool.allocate(8)
    with slab.map(cache="1MiB") as view:
        view[0] = 5
    assert slab.read(1) == b"\x05"


def test_array_outlives_its_pool(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(8)
    array = slab.array("u1", 8)
    pool.close()
    array[0] = 1
    assert array[0] == 1


# Letting go -----------------------------------------------------------------------------------------


def test_freed_slab_is_stale_in_every_handle(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(8, name="a")
    other = pool.open("a")
    slab.free()
    for handle in (slab, other):
        with pytest.raises(StaleSlab):
            handle.read(1)
    other.close()
    pool.stat()
    assert len(server.seen(Detach)) == 1, "by the handle that was closed last"
    with pytest.raises(SlabNotFound):
        slab.free()


def test_free_after_close(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(8)
    slab.close()
    slab.close()
    slab.free()
    assert not server.slabs


def test_detach_when_the_last_handle_closes(server: ScriptedServer, pool: Pool) -> None:
    with pool.allocate(8, name="a"):
        with pool.open("a"), pool.open("a"):
            pass
        pool.stat()
        assert not any(isinstance(request, Detach) for _, request in server.requests)
    detach = server.seen(Detach)[0]
    assert (detach.id, detach.generation, detach.transport) == (1, 101, "plain")


def test_dropped_handle_detaches_with_the_next_request(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(8)
    del slab
    gc.collect()
    pool.stat()
    pool.allocate(8)
    assert server.seen(Detach)[0].id == 1


def test_methods_of_a_dropped_handle(server: ScriptedServer, pool: Pool) -> None:
    pool.allocate(8, name="a", lease="persistent").write(b"one line")
    read = pool.open("a").read
    assert read(8) == bytes(8), "this region's memory is its own, and still there"
    assert len(server.seen(Detach)) == 1
    del read
    gc.collect()
    pool.allocate(8)
    server.seen(Detach, 2)


def test_array_of_a_dropped_handle_keeps_it_attached(server: ScriptedServer, pool: Pool) -> None:
    array = pool.allocate(8).array("u1", 8)
    pool.allocate(8)
    assert not any(isinstance(request, Detach) for _, request in server.requests)
    assert array[0] == 0


def test_slab_that_is_closed_while_it_is_opened_is_attached_again(server: ScriptedServer, pool: Pool) -> None:
    first = pool.allocate(8, name="a")

    def close_meanwhile(peer: Peer, request_id: int, request: Request) -> None:
        first.close()
        server.answer(peer, request_id, request)

    server.rules[Open] = close_meanwhile
    with pool.open("a"):
        assert server.seen(Attach)[0].id == 1


def test_renewed_grant_is_as_wide_as_the_widest_handle(server: ScriptedServer, pool: Pool) -> None:
    pool.allocate(8, name="a", lease="persistent").close()
    reader = pool.open("a", mode="r")
    reader.attachment.ticket.renew(5.0)
    writer = pool.open("a")
    reader.attachment.ticket.renew(5.0)
    assert [request.mode for request in server.seen(Attach, 2)] == ["r", "rw"]
    del writer


def test_revoked_slab_is_stale(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(8)

    def revoke_first(peer: Peer, request_id: int, request: Request) -> None:
        peer.event("revoked", slab.info)
        server.answer(peer, request_id, request)

    server.rules[Stat] = revoke_first
    pool.stat()
    with pytest.raises(StaleSlab):
        slab.read(1)
    assert server.seen(Detach)[0].id == 1


def test_slab_that_cannot_be_attached_is_freed(server: ScriptedServer, pool: Pool, transport: PlainTransport) -> None:
    transport.failures += [TransportUnavailable("no route")] * 2
    with pytest.raises(TransportUnavailable, match="no route"):
        pool.allocate(8, lease="persistent")
    assert server.seen(Free)[0].id == 1
    with pytest.raises(TransportUnavailable, match="no route"):
        pool.allocate_many([8, 8], lease="persistent")
    assert len(server.seen(Free, 3)) == 3


def test_server_that_restarts_before_the_attach_is_asked_again(
    server: ScriptedServer, pool: Pool, transport: PlainTransport
) -> None:
    transport.failures.append(ServerLost("the data port is gone"))
    assert pool.allocate(8, name="a").nbytes == 8
    assert server.seen(Attach)[0].id == 1
    transport.failures += [ServerLost("the data port is gone")] * 2
    with pytest.raises(ServerLost, match="data port"):
        pool.open("a")


def test_closed_pool_closes_its_slabs(pool: Pool, transport: PlainTransport) -> None:
    slab = pool.allocate(8)
    pool.close()
    with pytest.raises(StaleSlab):
        slab.read(1)
    assert transport.closed
    slab.close()
    with pytest.raises(InvalidArgument, match="closed"):
        slab.free()


# Many at once ---------------------------------------------------------------------------------------


def test_many_slabs(server: ScriptedServer, pool: Pool) -> None:
    slabs = pool.allocate_many(["4KiB"] * 300)
    assert len({slab.id for slab in slabs}) == len(server.slabs) == 300
    pool.free_many(slabs)
    assert not server.slabs
    with pytest.raises(StaleSlab):
        slabs[0].read(1)
    assert pool.allocate_many([]) == []


def test_many_slabs_or_none(server: ScriptedServer, pool: Pool) -> None:
    def full_at_three(peer: Peer, request_id: int, request: Request) -> None:
        if len(server.slabs) == 3:
            raise PoolFull("no room", asked=1, free=0)
        server.answer(peer, request_id, request)

    server.rules[Allocate] = full_at_three
    with pytest.raises(PoolFull):
        pool.allocate_many([1] * 5)
    pool.stat()
    assert not server.slabs


def test_free_many_tries_all(server: ScriptedServer, pool: Pool) -> None:
    slabs = pool.allocate_many([8] * 3)
    del server.slabs[slabs[0].id]
    array = slabs[1].array("u1", 8)
    with pytest.raises(RegionInUse):
        pool.free_many(slabs)
    assert list(server.slabs) == [slabs[1].id]
    assert array[0] == 0


def test_many_requests_survive_a_cut(server: ScriptedServer, pool: Pool) -> None:
    slabs = pool.allocate_many([8] * 10)

    server.cut_once(Free, done=True)
    pool.free_many(slabs)
    assert not server.slabs


def test_threads_share_a_pool(server: ScriptedServer, pool: Pool) -> None:
    def work(number: int) -> int:
        slab = pool.allocate(number + 1, name=f"slab {number}")
        with pool.open(slab.id, mode="r") as reader:
            assert reader.name == f"slab {number}"
        slab.free()
        return slab.id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(work, range(64)))) == 64
    assert not server.slabs
