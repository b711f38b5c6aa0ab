"""Rounds that take turns, blocks of the right length, and medians."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from farpool.perf.rounds import ROUNDS, Contender, alternate, in_python


def constant(ns_per_call: float, made: list[tuple[str, int]], name: str) -> Contender:
    """Return a contender whose clock is made up: every call takes as long."""

    def contend(calls: int, samples: array[int], seconds: float) -> int:
        made.append((name, calls))
        for index in range(10):
            samples[index] = round(ns_per_call * calls)
        return 10

    return contend


def test_limit_and_ours_take_turns() -> None:
    made: list[tuple[str, int]] = []
    ours, limit = alternate(constant(20_000, made, "ours"), constant(10_000, made, "limit"), 0.1)
    assert made == [("limit", 1), ("ours", 1)] * (1 + ROUNDS)
    assert limit is not None
    assert (ours.p50_us, ours.p99_us, ours.calls_s) == pytest.approx((20, 20, 50_000))
    assert (limit.p50_us, limit.calls_s) == pytest.approx((10, 100_000))
    assert ours.calls == 10 * (1 + ROUNDS)


def test_quick_calls_are_timed_in_blocks() -> None:
    made: list[tuple[str, int]] = []
    ours, limit = alternate(constant(100, made, "ours"), None, 0.1)
    assert limit is None
    assert made[2:] == [("ours", 300)] * ROUNDS
    assert (ours.p50_us, ours.calls_s) == pytest.approx((0.1, 1e7))


def test_calls_that_take_no_time_are_measured_all_the_same() -> None:
    ours, _ = alternate(constant(0.01, [], "ours"), None, 0.1)
    assert ours.p50_us == pytest.approx(1e-5, rel=0.1)


def test_one_slow_round_does_not_move_the_medians() -> None:
    rounds = iter([1_000_000] * 2 + [10_000] * ROUNDS)

    def contend(calls: int, samples: array[int], seconds: float) -> int:
        samples[0] = next(rounds)
        return 1

    ours, _ = alternate(contend, None, 0.1)
    assert ours.p50_us == pytest.approx(10)


@pytest.mark.parametrize("calls", [1, 3, 4, 10])
def test_arguments_are_used_in_turn(calls: int) -> None:
    used: list[int] = []

    def run(block: Sequence[int]) -> None:
        assert len(block) == calls
        used.extend(block)

    count = in_python(run, [0, 1, 2, 3])(calls, array("q", bytes(8 * 6)), 60.0)
    assert count == 6
    assert set(used) == {0, 1, 2, 3} if calls != 3 else {0, 1, 2}
    assert used[:calls] == [index % 4 for index in range(calls)]


def test_time_ends_a_loop_after_one_block_at_least() -> None:
    samples = array("q", bytes(8 * 6))
    assert in_python(lambda block: None, [None])(1, samples, 0.0) == 1
