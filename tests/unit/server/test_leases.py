"""When leased slabs end, with a clock that the test moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from farpool.protocol.units import Lease
from farpool.server.directory_arena import DirectoryArena
from farpool.server.leases import Leases
from farpool.server.sessions import Session, SessionEvent, SessionTable
from farpool.server.slabs import Slab, SlabTable


class Clock(Protocol):
    now: float

    def __call__(self) -> float: ...


class Times:
    session_timeout = 10.0
    disconnect_grace = 1.0
    resume_grace = 30.0


class Line:
    def send(self, frame: bytes) -> None:
        """Nobody listens."""

    def close(self, reason: str) -> None:
        """Nothing to close."""


class World:
    """Leases with all that they need, and without a loop."""

    def __init__(self, clock: Clock, arena: DirectoryArena) -> None:
        self.clock = clock
        self.arena = arena
        self.watched: list[tuple[Callable[[], float], Callable[[], None]]] = []
        self.expired: list[int] = []
        self.slabs = SlabTable(1 << 30)
        self.sessions = SessionTable(Times(), clock, self.watch, self.session_ended)
        self.leases = Leases(self.slabs, self.sessions, self.watch, self.expire)

    def watch(self, deadline: Callable[[], float], expire: Callable[[], None]) -> None:
        self.watched.append((deadline, expire))

    def session_ended(self, session: Session, event: SessionEvent) -> None:
        for slab in self.slabs.owned_by(session.id):
            self.leases.orphan(slab, session)

    def expire(self, slab: Slab) -> None:
        self.expired.append(slab.id)
        self.slabs.retire(slab)

    def slab(self, owner: Session, lease: Lease) -> Slab:
        slab = Slab(
            self.arena,
            self.slabs.mappings,
            id=len(self.slabs) + 1,
            generation=1,
            slot=0,
            nbytes=1,
            tenant="default",
            name=None,
            lease=lease,
            owner=owner.id,
        )
        self.slabs.reserve(slab)
        self.slabs.admit(slab)
        self.leases.begin(slab)
        return slab

    def pass_time(self, seconds: float, *speaking: Session) -> None:
        """Let time pass in small steps; the sessions *speaking* are heard at each."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 0.25
            for session in speaking:
                session.last_seen = self.clock.now
            for deadline, expire in list(self.watched):
                if deadline() <= self.clock.now:
                    expire()


@pytest.fixture
def world(clock: Clock, memory_folder: Path) -> Iterator[World]:
    arena = DirectoryArena(str(memory_folder / "arena"))
    yield World(clock, arena)
    arena.close()


def opened(world: World, number: int = 1) -> Session:
    return world.sessions.open(number, "default", Line(), limit=10)


def test_other_leases_have_no_deadline(world: World) -> None:
    owner = opened(world)
    for lease in ("session", "persistent"):
        assert world.leases.deadline(world.slab(owner, lease)) == math.inf


def test_an_owner_that_speaks_keeps_the_lease(world: World) -> None:
    owner = opened(world)
    world.slab(owner, 20.0)
    world.pass_time(100.0, owner)
    assert world.expired == []


def test_a_lease_shorter_than_the_heartbeats_lasts_two_of_them(world: World) -> None:
    owner = opened(world)
    world.slab(owner, 0.5)
    world.pass_time(4.0)
    assert world.expired == []
    world.pass_time(1.0)
    assert world.expired == [1]


def test_the_lease_runs_out_after_the_owners_last_sign_of_life(world: World) -> None:
    owner = opened(world)
    world.slab(owner, 20.0)
    world.pass_time(7.0, owner)
    world.sessions.end(owner, SessionEvent.GOODBYE)
    world.pass_time(19.0)
    assert world.expired == []
    world.pass_time(1.0)
    assert world.expired == [1]


def test_a_silent_owner_does_not_renew(world: World) -> None:
    owner = opened(world)
    world.slab(owner, 12.0)
    world.pass_time(11.0)
    assert not owner.alive
    assert world.expired == []
    world.pass_time(1.0)
    assert world.expired == [1]


def test_the_grace_of_a_lost_connection_keeps_the_lease(world: World) -> None:
    owner, line = opened(world), Line()
    owner.channel = line
    world.slab(owner, 0.5)
    world.sessions.lose(owner, line)
    world.pass_time(0.75)
    assert world.expired == []
    world.pass_time(1.0)
    assert world.expired == [1]


def test_an_heir_renews_what_nobody_owned(world: World) -> None:
    owner, heir = opened(world), opened(world, 2)
    slab = world.slab(owner, 15.0)
    assert not world.leases.adopt(slab, heir)
    world.sessions.end(owner, SessionEvent.DIED)
    world.pass_time(5.0, heir)
    assert world.leases.adopt(slab, heir)
    world.pass_time(60.0, heir)
    assert world.expired == []
    world.sessions.end(heir, SessionEvent.GOODBYE)
    world.pass_time(15.0)
    assert world.expired == [1]


def test_a_freed_slab_does_not_expire(world: World) -> None:
    owner = opened(world)
    slab = world.slab(owner, 1.0)
    world.slabs.retire(slab)
    world.pass_time(30.0)
    assert world.expired == []
