"""The server's own mappings of slabs: how many there are at most, and of one tenant among several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farpool.protocol.errors import TransportUnavailable
from farpool.server.directory_arena import DirectoryArena
from farpool.server.own_mappings import OwnMappings
from farpool.server.slabs import Slab

MOST = 4


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[DirectoryArena]:
    arena = DirectoryArena(f"{tmp_path}/arena")
    yield arena
    arena.close()


@pytest.fixture
def mappings() -> OwnMappings:
    return OwnMappings(MOST)


class Maker:
    """Makes slabs, each mapped by the server unless that is refused."""

    def __init__(self, arena: DirectoryArena, mappings: OwnMappings) -> None:
        self.arena, self.mappings, self.made = arena, mappings, 0

    def make(self, tenant: str) -> Slab:
        self.made += 1
        number = self.made
        slab = Slab(
            self.arena,
            self.mappings,
            id=number,
            generation=number,
            slot=number,
            nbytes=1,
            tenant=tenant,
            name=None,
            lease="session",
            owner=None,
        )
        self.arena.create(number, 1)
        return slab

    def mapped(self, tenant: str) -> Slab:
        slab = self.make(tenant)
        slab.memory()
        return slab


def test_the_limit_is_of_those_that_there_are(arena: DirectoryArena, mappings: OwnMappings) -> None:
    maker = Maker(arena, mappings)
    slabs = [maker.mapped("crowd") for _ in range(MOST)]
    one_more = maker.make("crowd")
    with pytest.raises(TransportUnavailable, match=r"mapped 4 slabs, its most.*vm.max_map_count"):
        one_more.memory()
    slabs[0].memory()
    slabs[0].close_memory()
    slabs[0].close_memory()
    one_more.memory()
    with pytest.raises(TransportUnavailable):
        slabs[0].memory()
    for slab in (*slabs, one_more):
        slab.close_memory()


def test_one_of_several_tenants_has_half(arena: DirectoryArena, mappings: OwnMappings) -> None:
    maker = Maker(arena, mappings)
    mappings.several_tenants = lambda: True
    slabs = [maker.mapped("crowd") for _ in range(2)]
    with pytest.raises(TransportUnavailable, match=r'2 slabs of the tenant "crowd".*half of the 4'):
        maker.mapped("crowd")
    slabs += [maker.mapped("small") for _ in range(2)]
    with pytest.raises(TransportUnavailable, match="its most"):
        maker.mapped("third")
    for slab in slabs:
        slab.close_memory()


def test_memory_that_changes_its_slab_is_counted_for_whom_it_was_made(
    arena: DirectoryArena, mappings: OwnMappings
) -> None:
    maker = Maker(arena, mappings)
    mappings.several_tenants = lambda: True
    slab, draft = maker.mapped("crowd"), maker.make("small")
    slab.exchange_memory(draft)
    draft.close_memory()
    slabs = [maker.mapped("crowd") for _ in range(2)]
    with pytest.raises(TransportUnavailable, match='tenant "crowd"'):
        maker.mapped("crowd")
    for each in slabs:
        each.close_memory()


def test_what_cannot_be_mapped_is_not_counted(arena: DirectoryArena, mappings: OwnMappings) -> None:
    maker = Maker(arena, mappings)
    gone = maker.make("crowd")
    arena.remove(gone.memory_id)
    for _ in range(MOST + 1):
        with pytest.raises(FileNotFoundError):
            gone.memory()
    for slab in [maker.mapped("crowd") for _ in range(MOST)]:
        slab.close_memory()


def test_the_kernel_says_how_many() -> None:
    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    assert allowed / 2 < OwnMappings().most < allowed
