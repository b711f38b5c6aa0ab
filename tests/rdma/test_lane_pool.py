"""The pyverbs binding's pool of lanes: bounded, and no place is lost however an operation ends."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

import farpool
from farpool.transports.rdma.binding import Binding

if TYPE_CHECKING:
    from farpool.transports.rdma.pyverbs.lane import Lane
    from farpool.transports.rdma.pyverbs.lanes import LanePool


class Counted:
    """As much of a lane as the pool looks at."""

    def __init__(self) -> None:
        self.place: object = None
        self.pair = SimpleNamespace(incarnation=1)
        self.closed = False

    def close(self) -> None:
        self.closed = True


def open_lane(seconds: float) -> Lane:
    assert seconds > 0
    return cast("Lane", Counted())


@pytest.fixture
def pool(pyverbs: Binding) -> LanePool:
    from farpool.transports.rdma.pyverbs.lanes import LanePool

    return LanePool(open_lane)


def soon() -> float:
    return time.monotonic() + 30


def test_a_lane_that_came_back_is_used_again(pool: LanePool) -> None:
    first = pool.take(soon())
    pool.give(first)
    assert pool.take(soon()) is first


def test_the_fifth_waits_for_one_that_comes_back(pool: LanePool) -> None:
    lanes = [pool.take(soon()) for _ in range(4)]
    with pytest.raises(farpool.DeadlineExceeded, match="all 4 queue pairs"):
        pool.take(time.monotonic())
    waiting = threading.Thread(target=lambda: lanes.append(pool.take(soon())))
    waiting.start()
    pool.give(lanes[0])
    waiting.join(30)
    assert lanes[4] is lanes[0]


def test_a_discarded_one_makes_room(pool: LanePool) -> None:
    lanes = [pool.take(soon()) for _ in range(4)]
    pool.discard(lanes[0])
    assert cast("Counted", lanes[0]).closed
    assert pool.take(soon()) not in lanes


def test_so_does_one_that_an_interrupt_has_lost(pool: LanePool) -> None:
    lanes = [pool.take(soon()) for _ in range(4)]
    lanes.pop()
    gc.collect()
    lanes.append(pool.take(soon()))
    assert len(lanes) == 4


def test_one_that_could_not_be_opened_costs_no_place(pyverbs: Binding) -> None:
    from farpool.transports.rdma.pyverbs.lanes import LanePool

    def fail(seconds: float) -> Lane:
        raise farpool.ServerLost("nobody there")

    pool = LanePool(fail)
    for _ in range(10):
        with pytest.raises(farpool.ServerLost):
            pool.take(soon())


def test_a_closed_pool_takes_back_and_lends_no_more(pool: LanePool) -> None:
    idle, lent = pool.take(soon()), pool.take(soon())
    pool.give(idle)
    pool.close()
    assert cast("Counted", idle).closed
    assert not cast("Counted", lent).closed
    pool.give(lent)
    assert cast("Counted", lent).closed
    with pytest.raises(farpool.StaleSlab, match="pool is closed"):
        pool.take(soon())
    pool.close()
