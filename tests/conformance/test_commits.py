"""A slab changes by commits: readers see all of a draft or nothing of it, over every transport."""

from __future__ import annotations

import gc
import random
import threading
import time
from array import array
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.conftest import Connect, StartChild
    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

BLOCK = 64 << 10
SIZES = (5, BLOCK, BLOCK + 1, 5 * BLOCK + 777)


@pytest.fixture(params=SIZES)
def nbytes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def committed(pool: AnyPool) -> Iterator[AnySlab]:
    """Five blocks and a bit of committed bytes, which tell where they are."""
    slab = pool.allocate(5 * BLOCK + 777, name="committed")
    draft = slab.reserve()
    draft.write(pattern(slab.nbytes))
    draft.commit()
    yield slab
    slab.free()


def pattern(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


def wait_until_nothing_reclaims(pool: AnyPool) -> None:
    deadline = time.monotonic() + 20
    while pool.stat().reclaiming and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not pool.stat().reclaiming


# What a draft is --------------------------------------------------------------------------------------------


def test_all_or_nothing_is_seen(pool: AnyPool, other: AnyPool, nbytes: int) -> None:
    slab = pool.allocate(nbytes, name="seen")
    slab.write(b"old")
    before, reader = other.open("seen"), other.open("seen", mode="r")
    draft = slab.reserve()
    draft.write(pattern(nbytes))
    assert draft.read(nbytes) == pattern(nbytes)
    for handle in (slab, before, reader):
        assert handle.read(3) == b"old"
    draft.commit()
    for handle in (slab, before, reader, other.open("seen", mode="r"), pool.open(slab.id)):
        assert handle.read(nbytes) == pattern(nbytes)
        assert handle.generation == slab.generation
    assert other.open("seen").info.commits == 1
    slab.free()
    for handle in (slab, before, reader):
        with pytest.raises(farpool.StaleSlab):
            handle.read(3)


def test_handles_follow_in_every_operation(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="followed")
    handles = [other.open("followed") for _ in range(9)]
    draft = slab.reserve()
    draft.store(8, 77)
    draft.write(b"new", 16)
    draft.commit()
    buffer, another = bytearray(3), bytearray(8)
    assert handles[0].read_into(buffer, 16) == 3
    assert bytes(buffer) == handles[1].read(3, 16) == b"new"
    assert handles[2].readv([(16, buffer), (8, another)]) == 11
    assert int.from_bytes(another, "little") == handles[3].load(8) == 77
    with pytest.raises(farpool.ReadOnly, match="by commits alone"):
        handles[4].write(b"x")
    with pytest.raises(farpool.ReadOnly):
        handles[5].writev([(0, b"x")])
    with pytest.raises(farpool.ReadOnly):
        handles[6].store(0, 1)
    with pytest.raises(farpool.ReadOnly):
        handles[7].fetch_add(0, 1)
    with pytest.raises(farpool.ReadOnly):
        handles[8].compare_swap(0, 0, 1)
    slab.free()


def test_zeroes_or_a_copy(pool: AnyPool) -> None:
    slab = pool.allocate(3 * BLOCK)
    slab.write(b"\x11" * slab.nbytes)
    blank, copy = slab.reserve(), slab.reserve(copy=True)
    assert blank.read(slab.nbytes) == bytes(slab.nbytes)
    assert copy.read(slab.nbytes) == b"\x11" * slab.nbytes
    copy.write(b"changed", BLOCK - 3)
    copy.commit()
    assert slab.read(9, BLOCK - 4) == b"\x11changed\x11"
    blank.close()
    assert slab.read(9, BLOCK - 4) == b"\x11changed\x11"
    slab.free()


def test_many_commits_leave_one_memory(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="often")
    reader = other.open("often", mode="r")
    before = pool.stat()
    for number in range(1, 21):
        with_checksum = number % 3 > 0
        draft = slab.reserve(checksum=with_checksum, copy=number % 2 == 0)
        draft.write(number.to_bytes(8, "little"))
        draft.commit()
        assert reader.load(0) == slab.load(0) == number
    assert other.open("often").info.commits == 20
    wait_until_nothing_reclaims(pool)
    after = pool.stat()
    assert (after.allocated, after.slabs) == (before.allocated, before.slabs)
    slab.free()


def test_drafts_are_hidden_and_charged(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(BLOCK, name="base")
    allocated = pool.stat().allocated
    draft = slab.reserve()
    assert pool.stat().allocated >= allocated + BLOCK
    assert [info.id for info in pool.slabs()] == [info.id for info in other.slabs()] == [slab.id]
    for number in range(slab.id + 1, slab.id + 4):
        for asker in (pool, other):
            with pytest.raises(farpool.SlabNotFound):
                asker.open(number)
    draft.close()
    draft.close()
    wait_until_nothing_reclaims(pool)
    assert pool.stat().allocated == allocated
    slab.free()


def test_discarded(pool: AnyPool) -> None:
    slab = pool.allocate(4096)
    slab.write(b"old")
    draft = slab.reserve()
    draft.write(b"new")
    draft.close()
    assert slab.read(3) == b"old"
    with pytest.raises(farpool.InvalidArgument, match="reserve another"):
        draft.commit()
    assert slab.write(b"still writable") == 14
    slab.free()


def test_draft_of_a_slab_that_ends(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="ends")
    draft = other.open("ends").reserve()
    slab.free()
    with pytest.raises(farpool.StaleSlab):
        draft.commit()
    draft.close()
    wait_until_nothing_reclaims(pool)


def test_read_only_handles_reserve_nothing(pool: AnyPool, committed: AnySlab) -> None:
    with pytest.raises(farpool.ReadOnly):
        pool.open("committed", mode="r").reserve()
    assert pool.open("committed").reserve()


# Several at once ----------------------------------------------------------------------------------------------


def test_a_batch_is_one_commit(pool: AnyPool, other: AnyPool) -> None:
    slabs = [pool.allocate(4096, name=f"batch {number}") for number in range(10)]
    readers = [other.open(f"batch {number}", mode="r") for number in range(10)]
    drafts = [slab.reserve() for slab in slabs]
    for number, draft in enumerate(drafts):
        draft.write(b"%02d" % number)
    pool.commit(drafts)
    assert [reader.read(2) for reader in readers] == [b"%02d" % number for number in range(10)]
    drafts = [slab.reserve() for slab in slabs]
    for draft in drafts:
        draft.write(b"no")
    slabs[7].free()
    with pytest.raises(farpool.StaleSlab):
        pool.commit(drafts)
    for number, reader in enumerate(readers):
        if number != 7:
            assert reader.read(2) == b"%02d" % number
    for draft in drafts:
        draft.close()
    for number, slab in enumerate(slabs):
        if number != 7:
            slab.free()


def test_batches_that_cannot_be(pool: AnyPool) -> None:
    slab = pool.allocate(4096)
    with pytest.raises(farpool.InvalidArgument):
        pool.commit([])
    drafts = [slab.reserve(), slab.reserve()]
    with pytest.raises(farpool.InvalidArgument, match="one after the other"):
        pool.commit(drafts)
    for number, draft in enumerate(drafts):
        draft.commit()
        assert slab.load(0) == 0
        assert pool.open(slab.id).info.commits == number + 1
    slab.free()


# Readers while it happens ---------------------------------------------------------------------------------------


def test_no_read_mixes_versions(server: EmbeddedServer, transport: str, nbytes: int) -> None:
    """Single reads and batches over many requests, against a writer that commits all the time."""
    done = threading.Event()
    with (
        farpool.connect(server.url, transport=transport, timeout=60) as writing,
        farpool.connect(server.url, transport=transport, timeout=60) as reading,
    ):
        slab = writing.allocate(nbytes, name=f"mixed {nbytes}")

        def commit() -> None:
            for number in range(1, 60):
                with slab.reserve() as draft:
                    draft.write(bytes([number]) * nbytes)
                    draft.commit()
            done.set()

        reader = reading.open(f"mixed {nbytes}", mode="r")
        writer = threading.Thread(target=commit)
        writer.start()
        seen, buffers = 0, [bytearray(1) for _ in range(2000)]
        parts = [(index * nbytes // 2000, buffer) for index, buffer in enumerate(buffers)]
        offsets, gathered = array("q", [offset for offset, _ in parts]), bytearray(2000)
        while not done.is_set():
            reader.gather(offsets, 1, gathered)
            reader.readv(parts)
            for data in (bytes(gathered), b"".join(buffers), reader.read(nbytes)):
                assert len(set(data)) == 1, "bytes of two versions in one read"
                assert data[0] >= seen, "an older version after a newer one"
                seen = data[0]
        writer.join()
        assert reader.read(1) == bytes([59])
        slab.free()


@pytest.mark.usefixtures("needs_views")
def test_views_show_the_version_they_were_made_from(pool: AnyPool) -> None:
    slab = pool.allocate(4096)
    draft = slab.reserve()
    view = draft.view()
    view[:3] = b"one"
    with pytest.raises(farpool.RegionInUse):
        draft.commit()
    view.release()
    del view
    draft.commit()
    shown = slab.view(0, 3)
    assert shown.readonly
    assert bytes(shown) == b"one"
    draft = slab.reserve()
    draft.write(b"two")
    draft.commit()
    assert bytes(shown) == b"one"
    assert slab.read(3) == b"two"
    shown.release()
    del shown
    wait_until_nothing_reclaims(pool)
    slab.free()


@pytest.mark.usefixtures("needs_views")
def test_a_view_of_one_draft_only_puts_the_batch_off(pool: AnyPool) -> None:
    """Those before it were let go of already, which the server must learn all the same."""
    slabs = [pool.allocate(4096) for _ in range(3)]
    drafts = [slab.reserve() for slab in slabs]
    for draft in drafts:
        draft.write(b"new")
    view = drafts[1].view()
    for _ in range(2):
        with pytest.raises(farpool.RegionInUse):
            pool.commit(drafts)
    assert [slab.read(3) for slab in slabs] == [bytes(3)] * 3
    view.release()
    del view
    pool.commit(drafts)
    assert [slab.read(3) for slab in slabs] == [b"new"] * 3
    wait_until_nothing_reclaims(pool)
    for slab in slabs:
        slab.free()


# The writer dies, and so does the server --------------------------------------------------------------------------


def test_writer_dies_before_the_commit(
    start_child: StartChild, server: EmbeddedServer, transport: str, pool: AnyPool
) -> None:
    """Lessons row 1: what was half written shows nowhere, and is given back by itself."""
    slab = pool.allocate(4096, name="half")
    slab.write(b"whole")
    allocated = pool.stat().allocated
    child = start_child("reserve_and_wait", server.url, transport, "half")
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    assert pool.stat().allocated > allocated
    child.kill()
    child.wait()
    deadline = time.monotonic() + 20
    while pool.stat().allocated > allocated and time.monotonic() < deadline:
        time.sleep(0.02)
    assert pool.stat().allocated == allocated
    wait_until_nothing_reclaims(pool)
    assert slab.read(5) == pool.open("half").read(5) == b"whole"
    slab.free()


def test_server_dies_between_commits(own_server: EmbeddedServer, connect: Connect) -> None:
    pool = connect(own_server.url)
    slab = pool.allocate(2 * BLOCK, name="kept", lease="persistent")
    reader = pool.open("kept", mode="r")
    for number in range(3):
        draft = slab.reserve()
        draft.write(bytes([number + 1]) * slab.nbytes)
        draft.commit()
    pending = slab.reserve()
    pending.write(b"pending")
    own_server.kill()
    own_server.start()
    late = connect(own_server.url).open("kept")
    for handle in (slab, reader, pool.open("kept"), late):
        assert handle.read(slab.nbytes) == b"\x03" * slab.nbytes
        assert handle.info.generation == slab.generation
    late.close()
    assert pending.read(7) == b"pending"
    pending.commit()
    assert reader.read(8) == b"pending\x00"
    own_server.kill()
    own_server.start()
    assert reader.read(8) == pool.open("kept").read(8) == b"pending\x00"
    assert pool.open("kept").info.commits == 4
    slab.free()
    wait_until_nothing_reclaims(pool)
    assert pool.stat().allocated == 0
