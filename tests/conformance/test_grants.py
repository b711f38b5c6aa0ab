"""Slabs that one tenant lets another attach, and takes back: what each may do, at once and on every transport."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import farpool
from farpool.client.administration import Administration

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

OWNER, READER = "owner", "reader"


@pytest.fixture(scope="module")
def tenants(server: EmbeddedServer) -> Iterator[None]:
    """Two tenants that anybody may be."""
    with farpool.connect(server.url) as pool:
        address = next(each for each in pool.stat().addresses if each.startswith("unix:"))
    with Administration(address, 30) as administration:
        for name in (OWNER, READER):
            administration.add_tenant(name, None)
    yield
    with Administration(address, 30) as administration:
        for name in (OWNER, READER):
            administration.remove_tenant(name, force=True)


@pytest.fixture
def owner(connect: Connect, server: EmbeddedServer, tenants: None) -> AnyPool:
    return connect(server.url, tenant=OWNER)


@pytest.fixture
def reader(connect: Connect, server: EmbeddedServer, tenants: None) -> AnyPool:
    return connect(server.url, tenant=READER)


@pytest.fixture
def weights(owner: AnyPool) -> AnySlab:
    slab = owner.allocate(8192, name="weights")
    slab.write(b"granted")
    return slab


def calls(slab: AnySlab) -> list[Callable[[], object]]:
    return [
        lambda: slab.read(7),
        lambda: slab.read_into(bytearray(7)),
        lambda: slab.readv([(0, bytearray(7))]),
        lambda: slab.gather(array("q", [0]), 7, bytearray(7)),
        lambda: slab.load(0),
        lambda: slab.write(b"late"),
        lambda: slab.writev([(0, b"late")]),
        lambda: slab.scatter(array("q", [0]), 4, b"late"),
        lambda: slab.store(0, 1),
        lambda: slab.fetch_add(0, 1),
        lambda: slab.compare_swap(0, 0, 1),
    ]


def check_gone(slab: AnySlab) -> None:
    for call in calls(slab):
        with pytest.raises((farpool.StaleSlab, farpool.ReadOnly)):
            call()
    with pytest.raises(farpool.StaleSlab):
        slab.read(1)


def check_refused(slab: AnySlab) -> None:
    """A handle that may not be had any more says so when it asks, and is void once the server has told of it."""
    for call in calls(slab):
        with pytest.raises((farpool.StaleSlab, farpool.PermissionDenied)):
            call()


def test_a_reader_reads(weights: AnySlab, reader: AnyPool) -> None:
    with pytest.raises(farpool.SlabNotFound):
        reader.open("weights", mode="r")
    weights.grant(READER)
    with pytest.raises(farpool.PermissionDenied):
        reader.open("weights")
    slab = reader.open("weights", mode="r")
    assert slab.read(7) == b"granted"
    for call in calls(slab)[5:]:
        with pytest.raises(farpool.ReadOnly):
            call()
    with suppress(farpool.NotMappable), slab.view() as view:
        assert view.readonly
    for pool_slab in (slab, reader.open(weights.id, mode="r", tenant=OWNER)):
        with pytest.raises(farpool.PermissionDenied):
            pool_slab.free()
    weights.write(b"changed")
    assert slab.read(7) == b"changed"
    assert [info.id for info in reader.slabs()] == [weights.id]


def test_a_writer_writes(weights: AnySlab, reader: AnyPool) -> None:
    weights.grant(READER, mode="rw")
    slab = reader.open("weights")
    assert slab.write(b"writer") == 6
    slab.store(8, 5)
    assert slab.fetch_add(8, 2) == 5
    assert weights.read(7) == b"writerd"
    assert weights.load(8) == 7
    with pytest.raises(farpool.PermissionDenied):
        slab.free()


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_revoked_at_once_and_from_nobody_else(
    weights: AnySlab, owner: AnyPool, reader: AnyPool, connect: Connect, server: EmbeddedServer, mode: str
) -> None:
    twin = connect(server.url, tenant=OWNER).open("weights")
    weights.grant(READER, mode=mode)
    slabs = [reader.open("weights", mode=mode), connect(server.url, tenant=READER).open("weights", mode="r")]
    assert {slab.read(7) for slab in slabs} == {b"granted"}
    weights.revoke(READER)
    assert weights.grants() == []
    weights.write(b"private")
    for slab in slabs:
        check_gone(slab)
    with pytest.raises(farpool.SlabNotFound):
        reader.open("weights", mode="r")
    assert twin.read(7) == weights.read(7) == owner.open("weights").read(7) == b"private"
    twin.write(b"go on")
    assert weights.read(5) == b"go on"
    assert weights.generation == twin.generation


def test_what_was_mapped_shows_nothing_new(
    needs_views: None, weights: AnySlab, reader: AnyPool, transport: str, server: EmbeddedServer
) -> None:
    weights.grant(READER)
    slab = reader.open("weights", mode="r")
    with slab.view() as view:
        weights.revoke(READER)
        weights.write(b"private")
        assert bytes(view[:7]) == b"granted"
    del slab


def test_narrower(weights: AnySlab, reader: AnyPool) -> None:
    weights.grant(READER, mode="rw")
    slab = reader.open("weights")
    slab.write(b"writer")
    weights.grant(READER, mode="r")
    check_refused(slab)
    assert reader.open("weights", mode="r").read(6) == b"writer"


def test_it_ends_by_itself(weights: AnySlab, reader: AnyPool) -> None:
    weights.grant(READER, expires=1.0)
    slab = reader.open("weights", mode="r")
    (grant,) = weights.grants()
    assert grant.expires_in is not None
    deadline = time.monotonic() + 30
    with suppress(farpool.StaleSlab):
        while time.monotonic() < deadline:
            assert slab.read(7) == b"granted"
    check_gone(slab)
    assert weights.grants() == []
    with pytest.raises(farpool.SlabNotFound):
        reader.open("weights", mode="r")
    assert weights.read(7) == b"granted"


def test_a_freed_slab_is_gone_for_all(weights: AnySlab, reader: AnyPool) -> None:
    weights.grant(READER)
    slab = reader.open("weights", mode="r")
    weights.free()
    check_gone(slab)
    assert reader.slabs() == []


def test_a_commit_of_the_owner_reaches_the_reader(weights: AnySlab, reader: AnyPool) -> None:
    weights.grant(READER)
    slab = reader.open("weights", mode="r")
    draft = weights.reserve()
    draft.write(b"version")
    draft.commit()
    assert slab.read(7) == b"version"
    with pytest.raises(farpool.ReadOnly):
        slab.reserve()
    weights.revoke(READER)
    check_gone(slab)
    assert weights.read(7) == b"version"


def test_a_commit_of_a_writer_is_its_owners(weights: AnySlab, reader: AnyPool) -> None:
    weights.grant(READER, mode="rw")
    slab = reader.open("weights")
    draft = slab.reserve()
    draft.write(b"version")
    draft.commit()
    assert weights.read(7) == b"version"
    late = slab.reserve()
    weights.revoke(READER)
    with pytest.raises(farpool.StaleSlab):
        late.commit()
    assert weights.read(7) == b"version"


def test_grants_that_cannot_be(weights: AnySlab, reader: AnyPool) -> None:
    for tenant in (OWNER, "nobody", "", "a/b"):
        with pytest.raises(farpool.InvalidArgument):
            weights.grant(tenant)
    with pytest.raises(farpool.InvalidArgument):
        weights.grant(READER, mode="w")
    for seconds in (0.0, float("nan")):
        with pytest.raises(farpool.InvalidArgument):
            weights.grant(READER, expires=seconds)
    weights.revoke("nobody")
    weights.grant(READER)
    slab = reader.open("weights", mode="r")
    for call in (lambda: slab.grant(OWNER), lambda: slab.revoke(READER), slab.grants):
        with pytest.raises(farpool.PermissionDenied):
            call()
