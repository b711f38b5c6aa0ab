"""The checker itself: histories that are linearizable are accepted, and others are not."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.linearizability.histories import NEVER, Operation, is_linearizable


def op(
    kind: str, operands: tuple[int, ...], called: int, returned: int = NEVER, result: int | None = None
) -> Operation:
    return Operation(kind, operands, called, returned, result)


@pytest.mark.parametrize(
    ("expected", "history"),
    [
        (True, []),
        (True, [op("load", (), 0, 1, 0)]),
        (False, [op("load", (), 0, 1, 7)]),
        # Two that overlap are in either order; two that do not are in theirs.
        (True, [op("fetch_add", (1,), 0, 10, 1), op("fetch_add", (1,), 5, 12, 0)]),
        (False, [op("fetch_add", (1,), 0, 10, 1), op("fetch_add", (1,), 11, 12, 0)]),
        # A lost update, and one that was done twice.
        (False, [op("fetch_add", (1,), 0, 10, 0), op("fetch_add", (1,), 5, 12, 0)]),
        (False, [op("fetch_add", (1,), 0, 10, 0), op("load", (), 11, 12, 2)]),
        # A stale load.
        (False, [op("store", (3,), 0, 1), op("load", (), 2, 3, 0)]),
        (True, [op("store", (3,), 0, 4), op("load", (), 2, 3, 0)]),
        # Two swaps that both claim to have been the first.
        (False, [op("compare_swap", (0, 1), 0, 9, 0), op("compare_swap", (0, 2), 1, 8, 0)]),
        (True, [op("compare_swap", (0, 1), 0, 9, 0), op("compare_swap", (0, 2), 1, 8, 1)]),
        # An unknown outcome: never, or late, but not before its call, and once.
        (True, [op("store", (3,), 0), op("load", (), 5, 6, 0)]),
        (True, [op("store", (3,), 0), op("load", (), 5, 6, 0), op("load", (), 7, 8, 3)]),
        (False, [op("store", (3,), 0), op("load", (), 5, 6, 3), op("load", (), 7, 8, 0)]),
        (False, [op("store", (3,), 9), op("load", (), 5, 6, 3)]),
        (False, [op("fetch_add", (1,), 0), op("load", (), 5, 6, 1), op("load", (), 7, 8, 2)]),
    ],
)
def test_known_histories(expected: bool, history: list[Operation]) -> None:
    assert is_linearizable(history) == expected


def simulated(chance: random.Random, operations: int) -> list[Operation]:
    """Return a history that came about by doing one operation after the other, with calls and returns around each."""
    value, history = 0, list[Operation]()
    for moment in range(operations):
        kind = chance.choice(["load", "store", "fetch_add", "compare_swap"])
        new = chance.getrandbits(64)
        operands = {"load": (), "store": (new,), "fetch_add": (1,), "compare_swap": (value, new)}[kind]
        called = 1000 * moment - chance.randrange(4000)
        returned = 1000 * moment + chance.randrange(1, 4000)
        done = Operation(kind, operands, called, returned, None if kind == "store" else value)
        if chance.random() < 0.02:
            done = replace(done, returned=NEVER, result=None)
        value = done.apply(value)
        history.append(done)
    return history


@pytest.mark.parametrize("seed", range(20))
def test_what_happened_one_after_the_other_is_linearizable(seed: int) -> None:
    chance = random.Random(seed)
    history = simulated(chance, 400)
    chance.shuffle(history)
    assert is_linearizable(history)


@pytest.mark.parametrize("seed", range(20))
def test_one_result_that_nobody_can_have_seen_is_found(seed: int) -> None:
    chance = random.Random(seed)
    history = simulated(chance, 400)
    number = chance.choice([place for place, each in enumerate(history) if each.result is not None])
    history[number] = replace(history[number], result=chance.getrandbits(64) | 1 << 64)
    assert not is_linearizable(history)


@pytest.mark.parametrize("seed", range(10))
def test_an_update_that_was_lost_is_found(seed: int) -> None:
    """A store that others have seen is taken out of the history."""
    chance = random.Random(seed)
    history = simulated(chance, 400)
    results = {each.result for each in history}
    seen = [each for each in history if each.kind == "store" and each.known and each.operands[0] in results]
    history.remove(chance.choice(seen))
    assert not is_linearizable(history)
