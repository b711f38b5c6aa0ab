"""Words that clients wait for: each tenant's in its own turns, and not more of them than the server can look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
from tests.contexts import server_context
from tests.unit.server.conftest import FakeClock
from tests.unit.server.house import House, Silent

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, pack_hello, pack_request, unpack_answer
from farpool.protocol.errors import QuotaExceeded
from farpool.protocol.waiting_messages import Notify, Wait, Watch, Word
from farpool.server import waiting, watches
from farpool.server.dataplanes import DataPlanes
from farpool.server.sessions import Session
from farpool.server.slabs import Slab
from farpool.server.turns import Turns
from farpool.server.waiting import Waiting
from farpool.server.watches import SEVERAL

WITHIN = 20.0


class Room:
    """A server's waits, and sessions that wait."""

    def __init__(self, house: House, clock: FakeClock) -> None:
        self.house = house
        self.waiting = Waiting(house.life, Turns(asyncio.get_running_loop().call_soon), clock)

    def session(self, tenant: str) -> Session:
        return self.house.life.open_session(tenant, Silent(), 1000, None)

    def slab(self, session: Session) -> Slab:
        making = self.house.life.making
        slab = making.prepare(session, 4096, None, "session")
        making.make(slab)
        self.house.life.admit(session, slab, "")
        return slab

    def park(self, session: Session, slab: Slab, offset: int = 0) -> asyncio.Future[Word]:
        request = Wait(id=slab.id, generation=slab.generation, offset=offset, expected=0, seconds=1.0)
        answer = self.waiting.handle(session, slab, request)
        assert isinstance(answer, Awaitable)
        return cast("asyncio.Future[Word]", answer)

    def crowd(self, tenant: str, number: int, slab: Slab | None = None) -> list[asyncio.Future[Word]]:
        """Park that many requests of one tenant for the first word of a slab, of as many sessions as it takes."""
        parked: list[asyncio.Future[Word]] = []
        while len(parked) < number:
            session = self.session(tenant)
            slab = slab or self.slab(session)
            few = min(waiting.MOST_PARKED, number - len(parked))
            parked += [self.park(session, slab) for _ in range(few)]
        return parked


@pytest_asyncio.fixture
async def room(memory_folder: Path, clock: FakeClock) -> AsyncGenerator[Room]:
    house = House(memory_folder, DataPlanes())
    yield Room(house, clock)
    house.close()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """How often words of each slab were looked at."""
    counts: dict[int, int] = {}
    memory = Slab.memory

    def counting(slab: Slab) -> MemoryMapping:
        counts[slab.id] = counts.get(slab.id, 0) + 1
        return memory(slab)

    monkeypatch.setattr(Slab, "memory", counting)
    return counts


async def test_anothers_waits_that_end_together_delay_nobody(room: Room, clock: FakeClock) -> None:
    flood = room.crowd("bad", 1000)
    good = room.session("good")
    mine = room.park(good, room.slab(good))
    clock.now += 2.0
    assert await asyncio.wait_for(mine, WITHIN) == Word(value=0)
    assert sum(answer.done() for answer in flood) < 500
    await asyncio.wait_for(asyncio.gather(*flood), WITHIN)


async def test_a_change_that_nobody_tells_of_is_seen_behind_a_few_looks_at_others(
    room: Room, looks: dict[int, int]
) -> None:
    bad = room.slab(room.session("bad"))
    flood = room.crowd("bad", 2000, bad)
    good = room.session("good")
    slab = room.slab(good)
    mine = room.park(good, slab)
    looks.clear()
    slab.memory().store(0, 7)
    assert await asyncio.wait_for(mine, WITHIN) == Word(value=7)
    assert looks[bad.id] <= 2 * waiting.LOOKS_A_TICK
    bad.memory().store(0, 1)
    await asyncio.wait_for(asyncio.gather(*flood), WITHIN)


async def test_a_store_or_a_notify_looks_at_its_own_slab_alone(
    room: Room, looks: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 3600.0)
    session = room.session("default")
    here, elsewhere = room.slab(session), room.slab(session)
    mine = room.park(session, here)
    others = [room.park(session, elsewhere, 8 * place) for place in range(20)]
    looks.clear()
    for _ in range(10):
        room.waiting.changed(here.id)
        room.waiting.handle(session, here, Notify(id=here.id, generation=here.generation, offset=0))
    assert not mine.done()
    here.memory().store(0, 5)
    room.waiting.changed(here.id)
    assert await asyncio.wait_for(mine, WITHIN) == Word(value=5)
    assert not any(answer.done() for answer in others)
    assert elsewhere.id not in looks


async def test_a_tenant_that_waits_for_too_much_is_told(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_OF_TENANT", 100)
    flood = room.crowd("bad", 100)
    bad = room.session("bad")
    with pytest.raises(QuotaExceeded, match=r'the tenant "bad" waits for 100 words .*; wait for fewer'):
        room.park(bad, room.slab(bad))
    good = room.session("good")
    mine = room.park(good, room.slab(good))
    assert not mine.done()
    assert not any(answer.done() for answer in flood)


async def test_answered_waits_make_room_for_others(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_OF_TENANT", 10)
    session = room.session("default")
    slab = room.slab(session)
    for turn in range(1, 20):
        slab.memory().store(0, 0)
        parked = [room.park(session, slab) for _ in range(10)]
        slab.memory().store(0, turn)
        assert await asyncio.wait_for(asyncio.gather(*parked), WITHIN) == [Word(value=turn)] * 10


async def test_what_one_tenant_has_watched_is_bounded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MOST_WATCHED", 3)
    session, other = room.session("bad"), room.session("good")
    slabs = [room.slab(session) for _ in range(4)]

    def watch(who: Session, slab: Slab, offset: int = 0) -> None:
        room.waiting.handle(who, slab, Watch(id=slab.id, generation=slab.generation, offset=offset))

    for slab in slabs[:3]:
        for offset in range(0, 4096, 8):
            watch(session, slab, offset)
    with pytest.raises(QuotaExceeded, match=r'the tenant "bad" .* of 3 slabs, .* wait for words of fewer'):
        watch(session, slabs[3])
    watch(other, room.slab(other))
    last = room.park(session, slabs[3])  # it is looked at, although no store tells of it
    slabs[3].memory().store(0, 1)
    assert await asyncio.wait_for(last, WITHIN) == Word(value=1)


async def test_the_mark_of_a_slab_says_which_word_is_watched(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    generations = room.house.generations
    show = generations.watch

    def watch(slot: int, mark: int) -> None:
        shown.append(mark)
        show(slot, mark)

    monkeypatch.setattr(generations, "watch", watch)
    session = room.session("default")
    slab = room.slab(session)
    for offset in (16, 16, *range(0, 4096, 8)):
        room.waiting.handle(session, slab, Watch(id=slab.id, generation=slab.generation, offset=offset))
    assert shown == [17, SEVERAL]


async def test_the_tcp_data_plane_tells_in_which_slab_a_watched_word_was_stored_to(memory_folder: Path) -> None:
    told: asyncio.Queue[int] = asyncio.Queue()
    planes = DataPlanes()
    await planes.start("tcp", server_context({}, changed=told.put_nowait))
    house = House(memory_folder, planes)
    try:
        session = house.life.open_session("default", Silent(), 10, None)
        slabs: list[Slab] = []
        for _ in range(3):
            slabs.append(house.life.making.prepare(session, 4096, None, "session"))
            house.life.making.make(slabs[-1])
        params = [house.life.admit(session, slab, "tcp") for slab in slabs]
        reader, writer = await asyncio.open_connection(params[0]["host"], params[0]["port"])

        async def exchange(request: bytes) -> None:
            writer.write(request)
            assert unpack_answer(await reader.readexactly(ANSWER_BYTES))["status"] == 0

        await exchange(pack_hello(params[0]["slot"], params[0]["secret"]))
        planes.watch(slabs[1], SEVERAL)
        for _ in range(3):
            for slab, its in zip(slabs, params, strict=True):
                names = {"handle": its["handle"], "generation": slab.generation, "offset": 8, "operand": 1}
                await exchange(pack_request(OPERATIONS["store"], **names))
            assert await asyncio.wait_for(told.get(), WITHIN) == slabs[1].id
        assert told.empty()
        writer.close()
        house.life.end_slab(slabs[1], "revoked")
    finally:
        await planes.stop()
        house.close()
