"""A slab that has ended is stale in every handle, at once; its memory is nobody's until it is zeroed."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

WITHIN = 20.0
"""Seconds that an expiry may take to show."""


def operations(slab: AnySlab, target: bytearray) -> list[Callable[[], object]]:
    """Return a call of every operation."""
    return [
        lambda: slab.read_into(target),
        lambda: slab.read(8),
        lambda: slab.read(0),
        lambda: slab.write(b"12345678"),
        lambda: slab.readv([(0, target), (8, bytearray(8))]),
        lambda: slab.readv([]),
        lambda: slab.writev([(0, b"1"), (8, b"2")]),
        lambda: slab.load(0),
        lambda: slab.store(0, 1),
        lambda: slab.fetch_add(0, 1),
        lambda: slab.compare_swap(0, 0, 1),
        lambda: slab.gather(array("q", [0, 8]), 4, target),
        lambda: slab.scatter(array("q", [0, 8]), 4, b"12345678"),
        lambda: slab.gather(array("q"), 4, bytearray()),
    ]


def check_stale(slab: AnySlab) -> None:
    """See that every operation raises ``StaleSlab`` and fills no buffer."""
    target = bytearray(b"\xee" * 8)
    for number, call in enumerate(operations(slab, target)):
        try:
            outcome = call()
        except farpool.StaleSlab:
            continue
        if number in {2, 5, 13} and outcome in {b"", 0}:
            continue  # nothing was asked for, which need not travel
        pytest.fail(f"operation {number} of a slab that has ended returned {outcome!r}")
    assert target == b"\xee" * 8


def wait_until_stale(slab: AnySlab) -> None:
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        try:
            assert slab.read(4) == b"data", "bytes of another slab"
        except farpool.StaleSlab:
            return
        time.sleep(0.02)
    pytest.fail("the slab has not ended")


# The ways to end --------------------------------------------------------------------------------------------


def test_freed_by_us(pool: AnyPool) -> None:
    slab = pool.allocate(4096, name="mine")
    twin = pool.open("mine")
    slab.write(b"data")
    slab.free()
    check_stale(slab)
    check_stale(twin)
    with pytest.raises(farpool.SlabNotFound):
        pool.open("mine")
    with pytest.raises((farpool.StaleSlab, farpool.SlabNotFound)):
        slab.free()
    slab.close()


def test_freed_by_another_session(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="theirs")
    slab.write(b"data")
    twin, reader = other.open("theirs"), other.open("theirs", mode="r")
    assert reader.read(4) == twin.read(4) == b"data"
    twin.free()
    for handle in (slab, twin, reader):
        check_stale(handle)


def test_owner_has_gone(connect: Connect, server: EmbeddedServer, pool: AnyPool) -> None:
    owner = connect(server.url)
    slab = owner.allocate(4096, name="gone")
    twin = pool.open("gone")
    slab.write(b"data")
    owner.close()
    wait_until_stale(twin)
    check_stale(twin)
    check_stale(slab)


def test_lease_has_ended(connect: Connect, server: EmbeddedServer, pool: AnyPool) -> None:
    owner = connect(server.url)
    slab = owner.allocate(4096, name="leased", lease=0.3)
    slab.write(b"data")
    twin = pool.open("leased")
    assert slab.lease == twin.lease == 0.3
    owner.close()
    live = [info.name for info in pool.slabs() if info.state == "live"]
    assert live == ["leased"], "the lease lasts longer than its owner's session"
    wait_until_stale(twin)
    check_stale(twin)
    assert not [info for info in pool.slabs() if info.state == "live"]
    with pytest.raises(farpool.SlabNotFound):
        pool.open("leased")


def test_persistent_slab_outlives_its_owner(connect: Connect, server: EmbeddedServer, pool: AnyPool) -> None:
    owner = connect(server.url)
    slab = owner.allocate(4096, lease="persistent")
    twin = pool.open(slab.id)
    try:
        slab.write(b"data")
        owner.close()
        check_stale(slab)
        assert twin.read(4) == pool.open(slab.id).read(4) == b"data"
    finally:
        twin.free()


# Closing ----------------------------------------------------------------------------------------------------


def test_close_is_not_free(pool: AnyPool) -> None:
    slab = pool.allocate(4096, name="closed")
    slab.write(b"data")
    slab.close()
    slab.close()
    check_stale(slab)
    twin = pool.open("closed")
    assert twin.read(4) == b"data"
    slab.free()
    check_stale(twin)


def test_close_of_one_handle_spares_the_others(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="held")
    twin, reader, far = pool.open("held"), pool.open("held", mode="r"), other.open("held")
    slab.close()
    twin.write(b"data")
    reader.close()
    assert twin.read(4) == far.read(4) == b"data"
    twin.close()
    assert far.read(4) == b"data"


def test_closed_pool(connect: Connect, server: EmbeddedServer) -> None:
    pool = connect(server.url)
    slab = pool.allocate(4096)
    assert not pool.closed
    pool.close()
    pool.close()
    assert pool.closed
    check_stale(slab)
    calls: list[Callable[[], object]] = [
        lambda: pool.allocate(8),
        lambda: pool.open("x"),
        pool.stat,
        pool.slabs,
        slab.free,
    ]
    for call in calls:
        with pytest.raises(farpool.InvalidArgument, match="closed"):
            call()
    slab.close()


def test_handle_of_one_line(pool: AnyPool) -> None:
    """A handle may be dropped as soon as its method was taken from it."""
    slab = pool.allocate(4096, name="line")
    slab.write(b"data")
    assert pool.open("line").read(4) == b"data"
    assert pool.open("line").write(b"more") == 4
    assert slab.read(4) == b"more"


# Memory that was another's ----------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [8, 4096, 1 << 20])
def test_fresh_slab_is_zero(pool: AnyPool, other: AnyPool, nbytes: int) -> None:
    for _ in range(3):
        dirty = [pool.allocate(nbytes) for _ in range(4)]
        for slab in dirty:
            slab.write(b"\xff" * nbytes)
        for slab in dirty[1:]:
            slab.free()
        fresh = [other.allocate(nbytes) for _ in range(4)]
        for slab in fresh:
            assert slab.read(nbytes) == bytes(nbytes)
        assert dirty[0].read(nbytes) == b"\xff" * nbytes
        for slab in [dirty[0], *fresh]:
            slab.free()


def test_old_handle_never_shows_a_new_slab(pool: AnyPool, other: AnyPool) -> None:
    """Same name, same size, perhaps the same place in every table: another slab all the same."""
    old = other.allocate(4096, name="again")
    readers = [other.open("again"), pool.open("again", mode="r")]
    for number in range(20):
        old.write(b"old!")
        old.free()
        new = pool.allocate(4096, name="again")
        new.write(b"new!")
        for reader in readers:
            check_stale(reader)
        assert new.read(4) == b"new!"
        assert (new.id, new.generation) != (old.id, old.generation)
        readers = [*readers[-4:], pool.open("again"), other.open("again")]
        old = readers[-1] if number % 2 else new
    old.free()


def test_ids_and_generations_are_never_used_twice(pool: AnyPool) -> None:
    seen: set[int] = set()
    lives: set[int] = set()
    for _ in range(30):
        slab = pool.allocate(64)
        assert slab.id not in seen
        assert slab.generation not in lives
        seen.add(slab.id)
        lives.add(slab.generation)
        slab.free()
