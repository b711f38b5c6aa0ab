"""Turns: how much of the loop's time a tenant gets while others wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from farpool.server.turns import SECONDS_A_TURN, Turns


class Loop:
    """A loop whose time passes as requests take it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: list[Callable[[], None]] = []
        self.turns = Turns(self.ready.append, lambda: self.now)

    def turn(self) -> None:
        """Call what is ready now."""
        ready, self.ready[:] = list(self.ready), []
        for callback in ready:
            callback()


class Flood:
    """A connection with many requests of one length."""

    def __init__(self, loop: Loop, tenant: str, requests: int, seconds: float) -> None:
        self.loop, self.tenant, self.left, self.seconds = loop, tenant, requests, seconds
        self.done = 0

    def work(self) -> None:
        turns = self.loop.turns
        while self.left:
            if not turns.may_work(self.tenant):
                turns.wait(self.tenant, self)
                return
            begun = turns.begin()
            self.loop.now += self.seconds
            turns.end(self.tenant, begun)
            self.left -= 1
            self.done += 1


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_flood_works_for_a_turns_time_and_then_waits(loop: Loop) -> None:
    flood = Flood(loop, "a", 1000, SECONDS_A_TURN / 4)
    flood.work()
    assert flood.done == 4
    loop.turn()
    assert flood.done == 8
    assert loop.turns.may_work("b")
    while flood.left:
        before = loop.now
        loop.turn()
        assert loop.now - before <= SECONDS_A_TURN * 1.01


def test_connections_of_one_tenant_share_its_turn(loop: Loop) -> None:
    floods = [Flood(loop, "a", 1000, SECONDS_A_TURN / 2) for _ in range(8)]
    other = Flood(loop, "b", 1000, SECONDS_A_TURN / 2)
    for flood in floods:
        flood.work()
    other.work()
    for _ in range(79):
        loop.turn()
    assert sum(flood.done for flood in floods) == other.done == 160
    assert max(flood.done for flood in floods) - min(flood.done for flood in floods) <= 4


def test_a_long_request_uses_up_turns_to_come(loop: Loop) -> None:
    slow = Flood(loop, "a", 10, 5 * SECONDS_A_TURN)
    slow.work()
    assert slow.done == 1
    for _ in range(4):
        loop.turn()
        assert slow.done == 1
    loop.turn()
    assert slow.done == 2


def test_a_turn_comes_to_rest(loop: Loop) -> None:
    Flood(loop, "a", 3, SECONDS_A_TURN).work()
    for _ in range(10):
        loop.turn()
    assert not loop.ready


def test_one_that_has_left_is_not_called(loop: Loop) -> None:
    flood = Flood(loop, "a", 10, SECONDS_A_TURN)
    flood.work()
    loop.turns.leave("a", flood)
    loop.turns.leave("b", flood)
    loop.turn()
    loop.turn()
    assert flood.done == 1
