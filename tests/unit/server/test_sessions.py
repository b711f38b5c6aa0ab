"""The life of a session, by the table, with a clock that the test moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import pytest

from farpool.protocol.errors import AuthenticationFailed, PermissionDenied
from farpool.server.sessions import (
    TRANSITIONS,
    Session,
    SessionEvent,
    SessionState,
    SessionTable,
    hash_secret,
)


class Clock(Protocol):
    now: float

    def __call__(self) -> float: ...


class Times:
    def __init__(self) -> None:
        self.session_timeout = 10.0
        self.disconnect_grace = 1.0
        self.resume_grace = 30.0


class Line:
    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed = ""

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)

    def close(self, reason: str) -> None:
        self.closed = reason


class Watch:
    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False


class World:
    """A table with what it asks of the outside."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.watched: list[tuple[Callable[[], float], Callable[[], None]]] = []
        self.ended: list[tuple[int, SessionEvent]] = []
        self.on_end: Callable[[], None] = lambda: None
        self.times = Times()
        self.table = SessionTable(self.times, clock, self.watch, self.note)

    def watch(self, deadline: Callable[[], float], expire: Callable[[], None]) -> None:
        self.watched.append((deadline, expire))

    def note(self, session: Session, event: SessionEvent) -> None:
        self.ended.append((session.id, event))
        self.on_end()

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        for deadline, expire in list(self.watched):
            if deadline() <= self.clock.now:
                expire()


@pytest.fixture
def world(clock: Clock) -> World:
    return World(clock)


def opened(world: World, number: int = 1, line: Line | None = None) -> Session:
    return world.table.open(number, "default", line or Line(), limit=10)


def secret_of(session: Session) -> bytes:
    assert session.served is not None
    return session.served.secret


def test_an_impossible_event_names_state_and_event() -> None:
    session = Session(7, "default", b"", SessionState.ENDED, 0.0)
    with pytest.raises(RuntimeError, match=r"session 7 is ended.*said goodbye"):
        session.advance(SessionEvent.GOODBYE, 0.0)


def test_every_state_but_the_last_can_end_and_resume() -> None:
    for state in set(SessionState) - {SessionState.ENDED}:
        assert TRANSITIONS[state, SessionEvent.RESUMED] is SessionState.CONNECTED
        assert TRANSITIONS[state, SessionEvent.STOPPED] is SessionState.ENDED
    assert not [pair for pair in TRANSITIONS if pair[0] is SessionState.ENDED]


def test_silence_ends_a_session(world: World) -> None:
    line = Line()
    session = opened(world, line=line)
    world.pass_time(9.0)
    session.last_seen = world.clock.now
    world.pass_time(9.0)
    assert session.state is SessionState.CONNECTED
    world.pass_time(1.0)
    assert world.ended == [(1, SessionEvent.SILENT)]
    assert "silent" in line.closed
    assert len(world.table) == 0


def test_a_lost_connection_leaves_a_grace(world: World) -> None:
    line = Line()
    session = opened(world, line=line)
    world.table.lose(session, line)
    assert session.state is SessionState.DISCONNECTED
    assert world.table.served(1) is not None
    world.pass_time(0.9)
    assert world.ended == []
    world.pass_time(0.2)
    assert world.ended == [(1, SessionEvent.TOO_LATE)]
    assert world.table.served(1) is None


def test_resuming_within_the_grace_goes_on(world: World) -> None:
    line, second = Line(), Line()
    session = opened(world, line=line)
    secret = secret_of(session)
    world.table.lose(session, line)
    world.pass_time(0.5)
    assert world.table.resume(1, secret, second) is session
    world.pass_time(5.0)
    assert session.state is SessionState.CONNECTED
    assert session.channel is second
    world.pass_time(5.0)
    assert world.ended == [(1, SessionEvent.SILENT)]


def test_resuming_over_a_second_connection_closes_the_first(world: World) -> None:
    line, second = Line(), Line()
    session = opened(world, line=line)
    world.table.resume(1, secret_of(session), second)
    assert "resumed" in line.closed
    world.table.lose(session, line)
    assert session.state is SessionState.CONNECTED


@pytest.mark.parametrize("secret", [b"", b"x" * 32, bytes(32)])
def test_a_wrong_secret_resumes_nothing(world: World, secret: bytes) -> None:
    session = opened(world)
    for number in (1, 2):
        with pytest.raises(AuthenticationFailed):
            world.table.resume(number, secret, Line())
    assert session.state is SessionState.CONNECTED


def test_an_ended_session_stays_so(world: World) -> None:
    session = opened(world)
    secret = secret_of(session)
    world.table.end(session, SessionEvent.GOODBYE)
    world.table.end(session, SessionEvent.DIED)
    assert world.ended == [(1, SessionEvent.GOODBYE)]
    assert world.table.deadline(session) == math.inf
    with pytest.raises(AuthenticationFailed):
        world.table.resume(1, secret, Line())


def test_a_restored_session_waits_for_its_client(world: World) -> None:
    secret = b"s" * 32
    session = world.table.restore(5, "default", hash_secret(secret))
    assert world.table.served(5) is None
    world.pass_time(29.0)
    world.table.resume(5, secret, Line())
    served = world.table.served(5)
    assert served is not None
    assert served.secret == secret
    world.pass_time(9.0)
    assert session.alive
    world.pass_time(1.0)
    assert not session.alive


def test_a_restored_session_ends_if_nobody_comes(world: World) -> None:
    world.table.restore(5, "default", hash_secret(b"s" * 32))
    world.pass_time(30.0)
    assert world.ended == [(5, SessionEvent.TOO_LATE)]


def test_our_own_stall_is_nobody_elses_silence(world: World) -> None:
    session = opened(world)
    line = Line()
    other = opened(world, 2, line)
    world.table.lose(other, line)
    world.clock.now += 100.0
    world.table.forgive_silence()
    world.pass_time(0.5)
    assert session.alive
    assert other.alive
    world.pass_time(0.5)
    assert world.ended == [(2, SessionEvent.TOO_LATE)]
    world.pass_time(9.0)
    assert world.ended == [(2, SessionEvent.TOO_LATE), (1, SessionEvent.SILENT)]


def test_a_session_keeps_the_timeout_that_its_client_was_told(world: World) -> None:
    before = opened(world)
    world.times.session_timeout = 2.0
    after = opened(world, 2)
    world.pass_time(3.0)
    assert (before.alive, after.alive) == (True, False)
    before.last_seen = world.clock.now
    world.pass_time(9.0)
    assert before.alive


def test_there_is_a_limit_of_sessions(world: World) -> None:
    for number in range(3):
        world.table.open(number, "default", Line(), limit=3)
    with pytest.raises(PermissionDenied, match=r"limit of 3 sessions.*max_sessions"):
        world.table.open(3, "default", Line(), limit=3)


def test_a_dead_process_ends_its_session_and_the_watch_is_closed(world: World) -> None:
    session = opened(world)
    watch = Watch()
    session.watch_process(watch)
    world.table.end(session, SessionEvent.DIED)
    assert not watch.open


def test_a_goodbye_is_answered_once_it_is_noted(world: World) -> None:
    line = Line()
    session = opened(world, line=line)
    seen: list[list[bytes]] = []
    world.on_end = lambda: seen.append(list(line.frames))
    world.table.end(session, SessionEvent.GOODBYE, b"bye")
    assert (seen, line.frames) == ([[]], [b"bye"])
    assert line.closed
