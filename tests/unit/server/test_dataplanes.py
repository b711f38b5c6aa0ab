"""Transports as the server sees them: started, offered, refused; a slab's memory outlives what was published."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.server.house import House, Silent

from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.server import dataplanes
from farpool.server.dataplanes import DataPlanes, transport_settings
from farpool.server.long_work import LONG_BYTES
from farpool.server.sessions import SessionEvent
from farpool.server.settings import ConfigurationError, ServerSettings
from farpool.transports.contract import ClientTransport, ServedSession, ServedSlab, ServerContext, Transport


class Plane:
    """A transport's server half that notes what is asked of it."""

    def __init__(self, *, fails: Exception | None = None, maps: bool = False) -> None:
        self.fails = fails
        self.maps = maps
        self.calls: list[tuple[Any, ...]] = []

    async def start(self, context: ServerContext) -> None:
        if self.fails is not None:
            raise self.fails

    async def stop(self) -> None:
        self.calls.append(("stop",))

    def offer(self) -> Mapping[str, Any]:
        return {"port": 7}

    def negotiate(self, session: ServedSession, params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"session": session.id, **params}

    def publish(self, slab: ServedSlab, session: ServedSession, mode: str) -> Mapping[str, Any]:
        if self.fails is not None:
            raise self.fails
        self.calls.append(("publish", slab.id, session.id, mode, slab.memory().address))
        return {"slab": slab.id}

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        self.calls.append(("withdraw", slab.id, session_id))

    def revoke(self, slab: ServedSlab) -> None:
        self.calls.append(("revoke", slab.id, not slab.memory().closed))

    def end_session(self, session_id: int) -> None:
        self.calls.append(("end_session", session_id))

    def holders_may_map(self) -> bool:
        return self.maps

    def counters(self) -> Mapping[str, int]:
        return {"reads": 3}


CONTEXT = cast(ServerContext, None)


def install(monkeypatch: pytest.MonkeyPatch, **planes: Plane) -> None:
    def find(name: str) -> Transport:
        if name not in planes:
            raise InvalidArgument(f'there is no transport "{name}"')
        return Transport(name, 10, lambda: planes[name], lambda context: cast(ClientTransport, None))

    monkeypatch.setattr(dataplanes, "find_transport", find)


async def started(monkeypatch: pytest.MonkeyPatch, **planes: Plane) -> DataPlanes:
    install(monkeypatch, **planes)
    made = DataPlanes()
    for name in planes:
        await made.start(name, CONTEXT)
    return made


async def test_what_cannot_start_is_offered_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Plane(fails=TransportUnavailable("no device; load the driver"))
    planes = await started(monkeypatch, good=Plane(), broken=broken, odd=Plane(fails=OSError(5, "odd")))
    offers = {offer.transport: offer for offer in planes.offers()}
    assert offers["good"].available
    assert offers["good"].params == {"port": 7}
    assert (offers["broken"].available, offers["broken"].reason) == (False, "no device; load the driver")
    assert not offers["odd"].available
    with pytest.raises(TransportUnavailable, match=r'"broken" is not available.*no device'):
        planes.check("broken")
    with pytest.raises(TransportUnavailable, match="this server offers good"):
        planes.check("unknown")
    assert planes.counters()["good"] == {"available": True, "reason": "", "reads": 3}
    assert planes.counters()["broken"]["available"] is False


async def test_what_is_not_installed_or_has_no_port_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = OSError(errno.EADDRINUSE, "in use")
    wrapped = TransportUnavailable("the data port is in use")
    wrapped.__cause__ = taken
    install(monkeypatch, taken=Plane(fails=taken), wrapped=Plane(fails=wrapped))
    for name, words in (("none", "--transports"), ("taken", "--data-listen"), ("wrapped", "in use")):
        with pytest.raises(ConfigurationError, match=words):
            await DataPlanes().start(name, CONTEXT)


async def test_every_transport_is_stopped_even_if_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Plane):
        async def stop(self) -> None:
            raise RuntimeError("a third party's bug")

    last = Plane()
    planes = await started(monkeypatch, bad=Failing(), last=last)
    await planes.stop()
    await planes.stop()
    assert last.calls == [("stop",)]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EMFILE, "LimitNOFILE"), (errno.ENOMEM, "max_map_count"), (errno.EIO, "odd")]
)
async def test_a_publish_that_fails_says_what_would_mend_it(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    plane = Plane()
    planes = await started(monkeypatch, p=plane)
    plane.fails = OSError(number, "odd")
    with pytest.raises(TransportUnavailable, match=words):
        planes.publish("p", cast(Any, Label()), cast(Any, None), "rw")


class Label:
    id = 1
    label = "slab 1"


def test_tcp_gets_its_settings_and_others_their_own() -> None:
    settings = ServerSettings(
        data_listen="127.0.0.1:9", data_threads=3, transport_settings={"other": {"device": "x"}, "tcp": {"spin": 1}}
    )
    assert transport_settings(settings, "tcp") == {"listen": "127.0.0.1:9", "threads": 3, "spin": 1}
    assert transport_settings(settings, "other") == {"device": "x"}
    assert transport_settings(settings, "cxl") == {}


async def test_memory_is_closed_after_every_revoke_and_only_then(
    monkeypatch: pytest.MonkeyPatch, memory_folder: Path
) -> None:
    mapping, moving = Plane(maps=True), Plane()
    house = House(memory_folder, await started(monkeypatch, mapping=mapping, moving=moving))
    life = house.life
    try:
        owner = life.open_session("default", Silent(), 10, None)
        other = life.open_session("default", Silent(), 10, None)
        slab = life.making.prepare(owner, 4096, "n", "session")
        life.making.make(slab)
        life.admit(owner, slab, "moving")
        life.attach(other, slab, "mapping", "r")
        life.attach(other, slab, "mapping", "rw")
        life.attach(other, slab, "mapping", "r")
        modes = [call[3] for call in mapping.calls if call[0] == "publish"]
        assert modes == ["r", "rw", "rw"]
        memory = slab.memory()
        life.let_go(slab, owner.id, "moving")
        held = house.arena.open_descriptor(slab.memory_id, "r")
        life.end_slab(slab, "revoked", by=owner)
        for plane in (mapping, moving):
            assert ("revoke", slab.id, True) in plane.calls
        assert memory.closed
        assert house.generations.load(slab.slot) == 0
        assert life.slabs.reclaiming == 4096
        os.close(held)
        life.let_go(slab, other.id, "mapping")
        assert life.slabs.reclaiming == 0
        assert house.catalog.holders() == []
    finally:
        house.close()


async def test_a_publish_that_fails_leaves_no_slab(monkeypatch: pytest.MonkeyPatch, memory_folder: Path) -> None:
    plane = Plane()
    house = House(memory_folder, await started(monkeypatch, p=plane))
    try:
        owner = house.life.open_session("default", Silent(), 10, None)
        slab = house.life.making.prepare(owner, 4096, "n", "session")
        house.life.making.make(slab)
        plane.fails = OSError(errno.ENOMEM, "no memory")
        with pytest.raises(TransportUnavailable):
            house.life.admit(owner, slab, "p")
        assert house.arena.slabs() == {}
        assert house.catalog.slabs() == []
        assert (house.life.slabs.allocated, house.life.slabs.reclaiming) == (0, 0)
        assert house.life.making.prepare(owner, 4096, "n", "session").slot == slab.slot
    finally:
        house.close()


async def test_a_transport_with_bugs_harms_nobody_else(monkeypatch: pytest.MonkeyPatch, memory_folder: Path) -> None:
    class Buggy(Plane):
        def offer(self) -> Mapping[str, Any]:
            raise RuntimeError("offer")

        def revoke(self, slab: ServedSlab) -> None:
            self.view = memoryview(slab.memory())
            raise RuntimeError("revoke")

        def end_session(self, session_id: int) -> None:
            raise RuntimeError("end_session")

    buggy, good = Buggy(), Plane()
    planes = await started(monkeypatch, buggy=buggy, good=good, dead=Plane(fails=ImportError("no library")))
    offers = {offer.transport: offer.available for offer in planes.offers()}
    assert offers == {"buggy": False, "good": True, "dead": False}
    house = House(memory_folder, planes)
    life = house.life
    try:
        owner = life.open_session("default", Silent(), 10, None)
        slab = life.making.prepare(owner, 4096, None, "session")
        life.making.make(slab)
        life.admit(owner, slab, "buggy")
        life.attach(owner, slab, "good", "rw")
        memory = slab.memory()
        life.sessions.end(owner, SessionEvent.GOODBYE)
        assert ("end_session", owner.id) in good.calls
        assert (life.slabs.allocated, life.slabs.reclaiming) == (0, 4096)
        assert bytes(buggy.view[:2]) == bytes(2)
        buggy.view.release()
        memory.close()
        life.reclaiming.look(slab)
        assert life.slabs.reclaiming == 0
        assert house.arena.slabs() == {}
    finally:
        house.close()


async def test_a_file_that_cannot_be_removed_does_not_stop_a_sessions_end(
    monkeypatch: pytest.MonkeyPatch, memory_folder: Path
) -> None:
    house = House(memory_folder, await started(monkeypatch, p=Plane()))
    life = house.life

    def refuse(slab_id: int) -> bool:
        raise PermissionError(errno.EACCES, "not allowed")

    try:
        owner = life.open_session("default", Silent(), 10, None)
        for _ in range(3):
            slab = life.making.prepare(owner, 4096, None, "session")
            life.making.make(slab)
            life.admit(owner, slab, "p")
        with monkeypatch.context() as broken:
            broken.setattr(house.arena, "reclaim", refuse)
            life.sessions.end(owner, SessionEvent.GOODBYE)
        assert (len(life.slabs), life.slabs.allocated, life.slabs.reclaiming) == (0, 0, 3 * 4096)
        assert {row.reclaiming for row in house.catalog.slabs()} == {1}
        life.reclaiming.look_again("default")
        assert life.slabs.reclaiming == 0
        assert house.catalog.slabs() == []
    finally:
        house.close()


async def test_a_slot_is_free_as_soon_as_its_slab_has_ended(
    monkeypatch: pytest.MonkeyPatch, memory_folder: Path
) -> None:
    house = House(memory_folder, await started(monkeypatch, p=Plane(maps=True)))
    life = house.life
    try:
        owner = life.open_session("default", Silent(), 10, None)
        first = life.making.prepare(owner, 4096, None, "session")
        life.making.make(first)
        life.admit(owner, first, "p")
        life.end_slab(first, "revoked", by=owner)
        second = life.making.prepare(owner, 4096, None, "session")
        life.making.make(second)
        life.admit(owner, second, "p")
        assert second.slot == first.slot
        life.let_go(first, owner.id, "p")
        assert house.generations.load(second.slot) == second.generation
        assert life.making.prepare(owner, 4096, None, "session").slot != second.slot
    finally:
        house.close()


async def test_long_slabs_are_removed_in_a_thread_and_charged_until_then(
    monkeypatch: pytest.MonkeyPatch, memory_folder: Path
) -> None:
    house = House(memory_folder, await started(monkeypatch, p=Plane()))
    life = house.life
    try:
        owner = life.open_session("default", Silent(), 10, None)
        slab = life.making.prepare(owner, 2 * LONG_BYTES, None, "session")
        await life.making.make_long(owner, slab)
        life.admit(owner, slab, "p")
        removal = life.end_slab(slab, "revoked", by=owner)
        assert removal is not None
        assert life.slabs.reclaiming == 2 * LONG_BYTES
        await removal
        await asyncio.sleep(0)
        assert life.slabs.reclaiming == 0
        assert house.arena.slabs() == {}
    finally:
        house.close()


async def test_the_end_leaves_persistent_slabs_and_no_half_made_ones(
    monkeypatch: pytest.MonkeyPatch, memory_folder: Path
) -> None:
    house = House(memory_folder, await started(monkeypatch, p=Plane()))
    life = house.life
    try:
        owner = life.open_session("default", Silent(), 10, None)
        kept = life.making.prepare(owner, 4096, None, "persistent")
        life.making.make(kept)
        life.admit(owner, kept, "")
        half = life.making.prepare(owner, 2 * LONG_BYTES, None, "session")
        making = asyncio.ensure_future(life.making.make_long(owner, half))
        await asyncio.sleep(0)
        await life.finish()
        assert house.arena.slabs() == {kept.id: 4096}
        with pytest.raises(Exception, match="ended while its slab was being made"):
            await making
    finally:
        house.close()
