"""A large slab that a transport is made ready for in a thread: what may happen meanwhile, and what is left then."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from tests.unit.server.house import House, Silent
from tests.unit.server.test_dataplanes import Plane, started

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.commit_messages import Commit, DraftEnd
from farpool.protocol.errors import StaleSlab, TransportUnavailable
from farpool.protocol.messages import Attached, Open
from farpool.server.access import Access
from farpool.server.attaching import Attaching
from farpool.server.commits import Commits
from farpool.server.long_work import LONG_BYTES
from farpool.server.reports import Reports
from farpool.server.sessions import Session, SessionEvent
from farpool.server.slabs import Slab
from farpool.server.tenants import Tenants
from farpool.transports.contract import Mode, ServedSession, ServedSlab
from farpool.transports.rdma.slab_keys import SlabKeys

NBYTES = 2 * LONG_BYTES
OLD, NEW = b"old!", b"new!"


class Region:
    """What the device has registered."""

    def __init__(self, memory: MemoryMapping) -> None:
        self.memory = memory
        self.address, self.nbytes, self.lkey, self.rkey = memory.address, memory.nbytes, 0, 0
        self.open = True

    def close(self) -> None:
        self.open = False

    def reached(self) -> bytes:
        """Return what whoever has the key would read."""
        return ctypes.string_at(self.address, 4)


class Device:
    """Stands in for an RDMA device, which takes its time for a registration until ``go_on`` is set."""

    def __init__(self) -> None:
        self.busy, self.go_on = threading.Event(), threading.Event()
        self.regions: list[Region] = []
        self.fails: Exception | None = None

    def register(self, owner: object, address: int, nbytes: int, access: int) -> Region:
        self.busy.set()
        assert self.go_on.wait(20)
        if self.fails is not None:
            raise self.fails
        self.regions.append(Region(cast(MemoryMapping, owner)))
        return self.regions[-1]

    def close(self) -> None:
        """Nothing to close."""


class Registering(Plane):
    """The server half of a transport that registers slabs, as rdma's does."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.device = SlabKeys(), Device()
        self.refuses: Exception | None = None

    def prepare(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Awaitable[None] | None:
        if self.refuses is not None:
            raise self.refuses
        return self.keys.prepare(slab, session.tenant, mode, self.device, 0, asyncio.to_thread)

    def publish(self, slab: ServedSlab, session: ServedSession, mode: str) -> Mapping[str, Any]:
        region = self.keys.publish(slab, session, cast(Mode, mode), self.device, 0)
        return {"region": self.device.regions.index(cast(Region, region))}

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        self.keys.withdraw(slab, session_id)

    def revoke(self, slab: ServedSlab) -> None:
        self.keys.revoke(slab)


class Scene:
    """A pool with one large slab, its owner and others who open it."""

    def __init__(self, house: House, plane: Registering) -> None:
        self.house, self.plane, self.device = house, plane, plane.device
        life = self.life = house.life
        self.commits = Commits(life, lambda session, slab: None)
        access = Access(life, Tenants(house.catalog, {}), self.commits.move)
        clock = asyncio.get_running_loop().time
        self.attaching = Attaching(life, access, self.commits.move, Reports(life, access, clock, 1), 1)
        self.owner = self.session()
        self.slab = self.made(None)
        life.admit(self.owner, self.slab, "")
        ctypes.memmove(self.slab.memory().address, OLD, 4)

    def session(self) -> Session:
        return self.life.open_session("default", Silent(), 100, None)

    def made(self, draft_of: int | None, name: str | None = None) -> Slab:
        lease = "session" if draft_of else "persistent"
        slab = self.life.making.prepare(self.owner, NBYTES, name, lease, "cpu", draft_of=draft_of)
        self.life.making.make(slab)
        return slab

    async def opening(self, session: Session) -> asyncio.Future[Attached]:
        """Let a session open the slab, until the device is at work."""
        opened = self.attaching.open(session, Open(id=self.slab.id, mode="r", transport="p"))
        assert isinstance(opened, Awaitable)
        task = asyncio.ensure_future(opened)
        assert await asyncio.to_thread(self.device.busy.wait, 20)
        return task

    def region(self, attached: Attached) -> Region:
        return self.device.regions[int(attached.params["region"])]


@pytest_asyncio.fixture
async def scene(monkeypatch: pytest.MonkeyPatch, memory_folder: Path) -> AsyncIterator[Scene]:
    plane = Registering()
    house = House(memory_folder, await started(monkeypatch, p=plane))
    try:
        yield Scene(house, plane)
    finally:
        plane.device.go_on.set()
        await house.life.work.finish()
        house.close()


async def test_a_slab_is_reached_once_it_is_registered(scene: Scene) -> None:
    opening = await scene.opening(scene.session())
    assert not opening.done()
    scene.device.go_on.set()
    region = scene.region(await opening)
    assert (region.open, region.reached()) == (True, OLD)


async def test_a_commit_meanwhile_gives_the_key_of_the_new_memory(scene: Scene) -> None:
    opening = await scene.opening(scene.session())
    draft = scene.made(scene.slab.id)
    scene.life.admit(scene.owner, draft, "")
    ctypes.memmove(draft.memory().address, NEW, 4)
    await scene.commits.commit(
        scene.owner, Commit(drafts=[DraftEnd(id=draft.id, generation=draft.generation, checksum=False)])
    )
    scene.device.go_on.set()
    region = scene.region(await opening)
    assert (region.open, region.reached()) == (True, NEW)
    assert [each.open for each in scene.device.regions] == [False, True]


async def test_a_move_meanwhile_gives_the_key_of_the_new_memory(scene: Scene) -> None:
    opening = await scene.opening(scene.session())
    before = scene.slab.generation
    await scene.commits.move(scene.slab)
    assert scene.slab.generation != before
    scene.device.go_on.set()
    scene.region(await opening)
    assert [each.open for each in scene.device.regions] == [False, True]


async def test_a_slab_that_ends_meanwhile_has_no_key(scene: Scene) -> None:
    opening = await scene.opening(scene.session())
    scene.life.end_slab(scene.slab, "revoked", by=scene.owner)
    scene.device.go_on.set()
    with pytest.raises(StaleSlab, match="ended"):
        await opening
    assert [each.open for each in scene.device.regions] == [False]


async def test_a_session_that_ends_meanwhile_leaves_no_key(scene: Scene) -> None:
    session = scene.session()
    opening = await scene.opening(session)
    scene.life.sessions.end(session, SessionEvent.GOODBYE)
    scene.device.go_on.set()
    with pytest.raises(StaleSlab):
        await opening
    assert [each.open for each in scene.device.regions] == [False]


async def test_all_who_open_a_slab_wait_for_one_registration(scene: Scene) -> None:
    openings = [await scene.opening(scene.session()) for _ in range(8)]
    scene.device.go_on.set()
    regions = {id(scene.region(attached)) for attached in await asyncio.gather(*openings)}
    assert len(regions) == len(scene.device.regions) == 1


async def test_a_registration_that_fails_is_told_to_all_who_wait_and_made_anew(scene: Scene) -> None:
    openings = [await scene.opening(scene.session()) for _ in range(2)]
    scene.device.fails = TransportUnavailable("the limit of locked memory")
    scene.device.go_on.set()
    for opening in openings:
        with pytest.raises(TransportUnavailable, match="locked memory"):
            await opening
    scene.device.fails = None
    assert scene.region(await (await scene.opening(scene.session()))).open


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_slab_that_cannot_be_registered_is_not_made(scene: Scene, at_once: bool) -> None:
    error = TransportUnavailable("no protection domain")
    if at_once:
        scene.plane.refuses = error
    else:
        scene.device.fails = error
        scene.device.go_on.set()
    before = scene.life.slabs.allocated
    slab = scene.made(None, "large")
    with pytest.raises(TransportUnavailable, match="no protection domain"):
        await scene.attaching.admit_long(scene.owner, slab, "p")
    assert scene.life.slabs.allocated == before
    assert list(scene.life.slabs.being_made()) == []
    assert scene.house.arena.slabs() == {scene.slab.id: NBYTES}
    scene.life.making.abandon(scene.made(None, "large"))


async def test_others_are_served_meanwhile(scene: Scene) -> None:
    opening = await scene.opening(scene.session())
    begun = time.monotonic()
    small = scene.life.making.prepare(scene.owner, 4096, None, "session")
    scene.life.making.make(small)
    scene.attaching.admit(scene.owner, small, "")
    assert not opening.done()
    assert time.monotonic() - begun < 20, "the device is still at work"
    scene.device.go_on.set()
    await opening
