"""Deadlines that move: one timer, an injected clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import pytest

from farpool.server.deadlines import Deadlines, boot_clock, boot_id


class Clock(Protocol):
    now: float

    def __call__(self) -> float: ...


class Timer:
    def __init__(self, delay: float, call: Callable[[], None]) -> None:
        self.delay = delay
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Watched:
    def __init__(self, deadline: float) -> None:
        self.when = deadline
        self.expired = 0

    def deadline(self) -> float:
        return math.inf if self.expired else self.when

    def expire(self) -> None:
        self.expired += 1


class Loop:
    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.stalls = 0

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay, call))
        return self.timers[-1]

    def stalled(self) -> None:
        self.stalls += 1

    @property
    def armed(self) -> list[Timer]:
        return [timer for timer in self.timers if not timer.cancelled]


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def deadlines(clock: Clock, loop: Loop) -> Deadlines:
    return Deadlines(clock, loop.call_later, loop.stalled)


def test_expires_what_is_due_in_order(clock: Clock, loop: Loop, deadlines: Deadlines) -> None:
    late, early = Watched(1005.0), Watched(1002.0)
    for item in (late, early):
        deadlines.watch(item.deadline, item.expire)
    assert [timer.delay for timer in loop.armed] == [2.0]
    clock.now = 1002.0
    deadlines.run()
    assert (early.expired, late.expired) == (1, 0)
    clock.now = 1005.0
    deadlines.run()
    assert late.expired == 1
    assert len(deadlines) == 0


def test_renewal_costs_nothing_and_counts(clock: Clock, deadlines: Deadlines) -> None:
    item = Watched(1002.0)
    deadlines.watch(item.deadline, item.expire)
    item.when = 1010.0
    clock.now = 1002.5
    deadlines.run()
    assert item.expired == 0
    clock.now = 1010.0
    deadlines.run()
    assert item.expired == 1


def test_watching_twice_expires_once(clock: Clock, deadlines: Deadlines) -> None:
    item = Watched(1010.0)
    deadlines.watch(item.deadline, item.expire)
    item.when = 1001.0
    deadlines.watch(item.deadline, item.expire)
    clock.now = 1020.0
    deadlines.run()
    assert item.expired == 1


def test_entries_that_wait_for_nothing_do_not_pile_up(deadlines: Deadlines) -> None:
    for _ in range(5000):
        item = Watched(5000.0)
        deadlines.watch(item.deadline, item.expire)
        item.expired = 1
    assert len(deadlines) <= 1024


def test_a_late_wake_up_is_reported_before_anything_expires(clock: Clock, loop: Loop) -> None:
    item = Watched(1002.0)

    def forgive() -> None:
        loop.stalls += 1
        item.when = clock.now + 2.0

    deadlines = Deadlines(clock, loop.call_later, forgive)
    deadlines.watch(item.deadline, item.expire)
    clock.now = 1030.0
    deadlines.run()
    assert (loop.stalls, item.expired) == (1, 0)
    clock.now = 1032.0
    deadlines.run()
    assert (loop.stalls, item.expired) == (1, 1)


def test_infinity_is_not_kept_and_close_disarms(loop: Loop, deadlines: Deadlines) -> None:
    deadlines.watch(lambda: math.inf, lambda: None)
    assert len(deadlines) == 0
    item = Watched(1001.0)
    deadlines.watch(item.deadline, item.expire)
    deadlines.close()
    assert loop.armed == []


def test_long_waits_are_cut_for_suspended_machines(loop: Loop, deadlines: Deadlines) -> None:
    item = Watched(9000.0)
    deadlines.watch(item.deadline, item.expire)
    assert loop.armed[0].delay == 60.0


def test_the_boot_has_a_clock_and_an_id() -> None:
    assert boot_clock() <= boot_clock()
    assert boot_id() == boot_id()
    assert len(boot_id()) == 36
