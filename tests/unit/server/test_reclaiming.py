"""When the memory of an ended slab comes back: at once, when somebody lets go, when room is wanted, or by and by."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farpool.server.catalog import Catalog
from farpool.server.deadlines import Deadlines
from farpool.server.directory_arena import DirectoryArena
from farpool.server.long_work import LONG_BYTES, LongWork
from farpool.server.reclaiming import LONGEST_SECONDS, LOOKS_AT_ONCE, Reclaiming
from farpool.server.slabs import Slab, SlabTable

CAPACITY = 1 << 30


class Time:
    """A clock that goes when it is told to, and the one timer that is set on it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []
        self._expire: Callable[[], None] | None = None

    def call_later(self, seconds: float, expire: Callable[[], None]) -> Time:
        self.pauses.append(seconds)
        self._expire = expire
        return self

    def cancel(self) -> None:
        self._expire = None

    def pass_on(self) -> None:
        """Let the timer expire."""
        expire, self._expire = self._expire, None
        assert expire is not None, "nothing is waited for"
        self.now += self.pauses[-1]
        expire()

    @property
    def waits(self) -> bool:
        return self._expire is not None


class Yard:
    """Ended slabs over a real arena and catalog."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.time = Time()
        self.arena = DirectoryArena(str(folder / "arena"))
        undo.callback(self.arena.close)
        self.catalog = Catalog(f"{self.arena.control_path}/catalog.sqlite", durable=False)
        undo.callback(self.catalog.close)
        self.slabs = SlabTable(CAPACITY)
        self.work = LongWork(undo.enter_context(ThreadPoolExecutor(1)))
        deadlines = Deadlines(lambda: self.time.now, self.time.call_later, lambda: None)
        self.reclaiming = Reclaiming(
            self.arena, self.catalog, self.slabs, self.work, lambda: self.time.now, deadlines.watch
        )
        self._numbers = iter(range(1, 1 << 20))

    def make(self, nbytes: int = 4096, tenant: str = "default") -> Slab:
        number = next(self._numbers)
        slab = Slab(
            self.arena,
            self.slabs.mappings,
            id=number,
            generation=number,
            slot=number,
            nbytes=nbytes,
            tenant=tenant,
            name=None,
            lease="session",
            owner=None,
        )
        self.slabs.reserve(slab)
        self.arena.create(slab.id, nbytes)
        self.slabs.admit(slab)
        return slab

    def hold(self, slab: Slab) -> int:
        return self.arena.open_descriptor(slab.memory_id, "r")

    def end(self, slab: Slab) -> object:
        self.slabs.retire(slab)
        return self.reclaiming.begin(slab)

    def end_held(self, count: int, tenant: str) -> list[int]:
        """Make slabs and end them, while somebody holds them; return the descriptors that do."""
        slabs = [self.make(tenant=tenant) for _ in range(count)]
        held = [self.hold(slab) for slab in slabs]
        for slab in slabs:
            self.end(slab)
        return held


@pytest.fixture
async def yard(memory_folder: Path) -> AsyncIterator[Yard]:
    with contextlib.ExitStack() as undo:
        yard = Yard(memory_folder, undo)
        yield yard
        await yard.work.finish()


def let_go(held: list[int]) -> None:
    for descriptor in held:
        os.close(descriptor)


async def test_what_nobody_holds_comes_back_at_once(yard: Yard) -> None:
    slab = yard.make()
    slab.memory()
    assert yard.end(slab) is None
    assert (yard.slabs.reclaiming, yard.arena.slabs(), yard.time.waits) == (0, {}, False)


async def test_what_is_held_is_looked_at_ever_more_seldom(yard: Yard) -> None:
    held = yard.end_held(1, "default")
    for _ in range(12):
        yard.time.pass_on()
    assert yard.time.pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[LONGEST_SECONDS] * 6])
    assert yard.slabs.reclaiming == 4096
    assert yard.arena.slabs() == {1: 4096}
    let_go(held)
    yard.time.pass_on()
    assert (yard.slabs.reclaiming, yard.arena.slabs(), yard.time.waits) == (0, {}, False)


async def test_a_word_is_a_reason_to_look_and_no_more(yard: Yard) -> None:
    slab = yard.make()
    held = yard.hold(slab)
    yard.slabs.hold(slab, 7, "cxl", "r")
    yard.end(slab)
    yard.slabs.let_go(slab, 7, "cxl")
    yard.reclaiming.look(slab)
    assert yard.slabs.reclaiming == 4096
    os.close(held)
    yard.reclaiming.look(slab)
    assert yard.slabs.reclaiming == 0


async def test_who_says_nothing_and_holds_nothing_is_not_waited_for(yard: Yard) -> None:
    released: list[int] = []
    yard.reclaiming.released = released.append
    slab = yard.make()
    yard.slabs.hold(slab, 7, "cxl", "rw")
    yard.end(slab)
    assert yard.slabs.reclaiming == 0
    assert yard.slabs.held_by(7) == []
    assert released == [7]


async def test_long_slabs_come_back_in_a_thread(yard: Yard) -> None:
    slab = yard.make(2 * LONG_BYTES)
    slab.memory()
    held = yard.hold(slab)
    first = yard.end(slab)
    assert isinstance(first, asyncio.Future)
    await first
    assert yard.slabs.reclaiming == 2 * LONG_BYTES
    os.close(held)
    second = yard.reclaiming.look_again("default")
    assert second is not None
    assert yard.slabs.reclaiming == 2 * LONG_BYTES, "it is charged until its pages are back"
    await second
    assert (yard.slabs.reclaiming, yard.arena.slabs()) == (0, {})


async def test_who_lets_go_while_a_thread_looks_is_not_missed(yard: Yard) -> None:
    slab = yard.make(2 * LONG_BYTES)
    held = yard.hold(slab)
    yard.end(slab)
    os.close(held)
    yard.reclaiming.look(slab)
    await yard.work.finish()
    assert yard.slabs.reclaiming == 0


async def test_for_room_all_are_looked_at(yard: Yard) -> None:
    held = yard.end_held(3, "one") + yard.end_held(3, "another")
    yard.reclaiming.look_again("one")
    assert yard.slabs.reclaiming == 6 * 4096
    let_go(held)
    yard.reclaiming.look_again("a third")
    assert yard.slabs.reclaiming == 0


async def test_a_crowd_keeps_nobody_from_his_turn(yard: Yard) -> None:
    crowd = yard.end_held(3 * LOOKS_AT_ONCE, "crowd")
    let_go(yard.end_held(1, "one"))
    yard.reclaiming.look_again("crowd")
    assert yard.slabs.account("one").nbytes == 0
    let_go(yard.end_held(1, "one"))
    yard.reclaiming.look_again("one")
    assert yard.slabs.account("one").nbytes == 0
    let_go(crowd)
    looks = 0
    while yard.slabs.reclaiming:
        yard.reclaiming.look_again("one" if looks % 2 else "crowd")
        looks += 1
    assert looks < 10


async def test_a_file_that_cannot_be_removed_is_tried_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    slab = yard.make()

    def refuse(slab_id: int) -> bool:
        raise PermissionError(f"slab {slab_id} stays")

    with monkeypatch.context() as broken:
        broken.setattr(yard.arena, "reclaim", refuse)
        yard.end(slab)
    assert yard.slabs.reclaiming == 4096
    yard.time.pass_on()
    assert yard.slabs.reclaiming == 0


async def test_where_the_kernel_does_not_tell_words_count(yard: Yard) -> None:
    yard.arena.sees_holders = False
    slab = yard.make()
    yard.slabs.hold(slab, 7, "cxl", "rw")
    yard.end(slab)
    assert (yard.slabs.reclaiming, yard.time.waits) == (4096, False)
    held = yard.hold(slab)
    yard.slabs.let_go(slab, 7, "cxl")
    yard.reclaiming.look(slab)
    assert (yard.slabs.reclaiming, yard.arena.slabs()) == (0, {})
    os.close(held)


async def test_when_the_server_ends_its_slabs_are_left_to_the_kernel(yard: Yard) -> None:
    before, after = yard.make(), yard.make()
    held = [yard.hold(before), yard.hold(after)]
    yard.end(before)
    yard.reclaiming.closing = True
    yard.end(after)
    assert yard.arena.slabs() == {before.id: 4096}
    assert yard.slabs.reclaiming == 4096
    let_go(held)
