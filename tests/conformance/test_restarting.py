"""A server that is killed and comes back on its arena: the same handles go on, or learn that their slab is gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conformance.driving import AwaitedPool

import farpool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

LOST = (farpool.ServerLost, farpool.DeadlineExceeded)


@pytest.fixture
def pools(own_server: EmbeddedServer, transport: str) -> Iterator[dict[str, AnyPool]]:
    """A session over each API: a start of the server takes a second, so that they share it."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as plain:
        awaited = AwaitedPool(own_server.url, transport, 30)
        yield {"sync": plain, "aio": awaited}
        awaited.end()


def test_killed(own_server: EmbeddedServer, pools: dict[str, AnyPool], transport: str) -> None:
    leases = ("session", "persistent", 600.0)
    slabs: dict[str, AnySlab] = {}
    for api, pool in pools.items():
        for lease in leases:
            slab = slabs[f"{api} {lease}"] = pool.allocate(70_000, name=f"{api} {lease}", lease=lease)
            slab.write(f"bytes of {slab.name}".encode(), offset=65_000)
            slab.store(8, 41)
    reader = pools["sync"].open("aio persistent", mode="r")
    epoch = pools["sync"].stat().epoch
    own_server.kill()
    own_server.start()
    for name, slab in slabs.items():
        assert slab.read(len(name) + 9, 65_000) == f"bytes of {name}".encode()
        assert slab.fetch_add(8, 1) == 41
        assert slab.write(b"again", 20) == 5
        assert slab.readv([(20, bytearray(5)), (8, bytearray(8))]) == 13
    assert reader.read(5, 20) == b"again"
    with pytest.raises(farpool.ReadOnly):
        reader.write(b"x")
    for pool in pools.values():
        assert pool.stat().epoch == epoch + 1
        assert {info.name for info in pool.slabs()} == set(slabs)
        assert pool.open("sync persistent").load(8) == 42
        with pytest.raises(farpool.NameTaken):
            pool.allocate(8, name="aio 600.0")
        fresh = pool.allocate(4096)
        assert fresh.read(4096) == bytes(4096)
        assert fresh.id > max(slab.id for slab in slabs.values())
        fresh.free()
    slabs["sync persistent"].free()
    with farpool.connect(own_server.url, transport=transport) as late:
        assert late.open("aio persistent").read(5, 20) == b"again"
        with pytest.raises(farpool.SlabNotFound):
            late.open("sync persistent")


def test_who_reads_since_is_not_taken_for_who_wrote_before(
    own_server: EmbeddedServer, pools: dict[str, AnyPool]
) -> None:
    """What one start of the server has handed out may name something else in the next."""
    writers = {api: pool.allocate(4096, name=api, lease="persistent") for api, pool in pools.items()}
    for writer in writers.values():
        writer.write(b"before")
    own_server.kill()
    own_server.start()
    readers = {api: pool.open(api, mode="r") for api, pool in pools.items()}
    for api, reader in readers.items():
        assert reader.read(6) == b"before"
        assert writers[api].write(b"after") == 5
        assert reader.read(5) == b"after"
        with pytest.raises(farpool.ReadOnly):
            reader.write(b"x")


def test_taken_over(own_server: EmbeddedServer, pools: dict[str, AnyPool], transport: str) -> None:
    """Another server goes on with the sessions; connections of every kind are made anew."""
    slabs = {api: pool.allocate(70_000, name=api) for api, pool in pools.items()}
    sessions = {api: pool.session_id for api, pool in pools.items()}
    for slab in slabs.values():
        slab.write(b"before", 65_000)
    draft = slabs["sync"].reserve(copy=True)
    draft.write(b"committed", 100)
    own_server.take_over()
    for slab in slabs.values():
        assert slab.read(6, 65_000) == b"before"
        assert slab.write(b"after", 65_000) == 5
        assert slab.fetch_add(8, 1) == 0
    draft.commit()
    for api, pool in pools.items():
        assert pool.open("sync", mode="r").read(9, 100) == b"committed"
        assert pool.session_id == sessions[api]
        assert pool.allocate(4096).read(1) == b"\0"
    with farpool.connect(own_server.url, transport=transport) as late:
        assert late.open("aio").read(5, 65_000) == b"after"


def test_without_its_slabs(own_server: EmbeddedServer, pools: dict[str, AnyPool]) -> None:
    """One file was lost while the server was dead, one slab freed by its sessions's end: both are stale, not empty."""
    for api, pool in pools.items():
        for kind in ("lost", "kept"):
            pool.allocate(4096, name=f"{api} {kind}", lease="persistent").write(b"data")
    handles = {
        (api, name): pool.open(name)
        for api, pool in pools.items()
        for name in ("sync lost", "aio lost", "sync kept", "aio kept")
    }
    if not Path(own_server.arena).is_dir():
        pytest.skip("an extent of a device cannot be lost by itself")
    own_server.kill()
    for (_, name), slab in handles.items():
        if name.endswith("lost"):
            Path(own_server.arena, f"slab-{slab.id}").unlink(missing_ok=True)
    own_server.start()
    for (api, name), slab in handles.items():
        pools[api].stat()
        target = bytearray(b"\xee" * 4)
        if name.endswith("kept"):
            assert slab.read_into(target) == 4
            assert target == b"data"
            continue
        with pytest.raises(farpool.StaleSlab):
            slab.read_into(target)
        assert target == b"\xee" * 4
        with pytest.raises(farpool.StaleSlab):
            slab.write(b"x")
        with pytest.raises(farpool.SlabNotFound):
            pools[api].open(name)


def test_let_go_of_while_the_server_is_dead(own_server: EmbeddedServer, pools: dict[str, AnyPool]) -> None:
    """The word of it comes once the session goes on, so that others may have the slab for themselves."""
    for pool in pools.values():
        pool.allocate(4096, name="left", lease="persistent").close()
        held = pool.open("left")
        own_server.kill()
        held.close()
        own_server.start()
        pool.stat()
        for other in pools.values():
            if other is not pool:
                other.open("left", exclusive=True).free()


def test_stopped_in_order(own_server: EmbeddedServer, pools: dict[str, AnyPool]) -> None:
    """Then sessions end and their slabs go; persistent ones stay, also for handles that were open all the time."""
    slabs = {api: pool.allocate(4096, name=api) for api, pool in pools.items()}
    kept = {api: pool.allocate(4096, lease="persistent") for api, pool in pools.items()}
    readers = {api: pool.open(kept[api].id, mode="r") for api, pool in pools.items()}
    for slab in (*slabs.values(), *kept.values()):
        slab.write(b"data")
    sessions = {api: pool.session_id for api, pool in pools.items()}
    own_server.restart()
    for api, pool in pools.items():
        assert pool.slabs()
        assert pool.session_id != sessions[api]
        with pytest.raises(farpool.StaleSlab):
            slabs[api].read(4)
        kept[api].notify(8)
        assert kept[api].read(4) == b"data"
        assert kept[api].write(b"more") == 4
        assert kept[api].fetch_add(8, 1) == 0
        assert readers[api].read(4) == b"more"
        assert kept[api].wait(8, 0) == 1
        kept[api].reserve().close()
        kept[api].free()


def test_stopped_in_order_means_that_nobody_has_a_slab_alone(
    own_server: EmbeddedServer, pools: dict[str, AnyPool], transport: str
) -> None:
    """Who had one has it no more, and who shared one goes on only where others let him."""
    alone: dict[str, AnySlab] = {}
    shared: dict[str, AnySlab] = {}
    for api, pool in pools.items():
        shared[api] = pool.allocate(4096, name=f"shared {api}", lease="persistent")
        pool.allocate(4096, name=f"alone {api}", lease="persistent").close()
        alone[api] = pool.open(f"alone {api}", exclusive=True)
        alone[api].write(b"ours")
    own_server.restart()
    with farpool.connect(own_server.url, transport=transport) as other:
        taken = [other.open(slab.id, exclusive=True) for slab in shared.values()]
        for slab in taken:
            slab.write(b"theirs")
        for api, pool in pools.items():
            with pytest.raises(farpool.SlabBusy):
                shared[api].write(b"late")
            with pytest.raises(farpool.StaleSlab):
                alone[api].write(b"late")
            assert not alone[api].exclusive
            assert pool.open(alone[api].id, exclusive=True).read(4) == b"ours"
        for slab in taken:
            assert slab.read(6) == b"theirs"
            slab.close()
        other.stat()
        for handle in shared.values():
            assert handle.read(6) == b"theirs"
            assert handle.write(b"ours") == 4


def test_away_for_longer_than_the_deadline(
    own_server: EmbeddedServer, transport: str, pools: dict[str, AnyPool]
) -> None:
    slabs = [pool.allocate(4096, lease="persistent") for pool in pools.values()]
    for slab in slabs:
        slab.write(b"data")
    own_server.kill()
    for slab, pool in zip(slabs, pools.values(), strict=True):
        if transport != "cxl":
            with pytest.raises(LOST):
                slab.read(4, timeout=0.3)
            with pytest.raises(LOST):
                slab.write(b"x", timeout=0.3)
        with pytest.raises(LOST):
            pool.stat(timeout=0.3)
        with pytest.raises(LOST):
            pool.allocate(8, timeout=0.3)
    own_server.start()
    for slab, pool in zip(slabs, pools.values(), strict=True):
        assert slab.read(4) == b"data"
        assert pool.stat().slabs == 2
