"""Measure a contender and its limit in alternate rounds, each bounded by time; take medians over them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import median
from time import perf_counter_ns
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from farpool.perf.walk import Int64Array

__all__ = ["ROUNDS", "Contender", "Speed", "alternate", "in_python", "pairs"]

Contender = Callable[[int, Int64Array, float], int]
"""``contender(calls, samples, seconds)`` times blocks of *calls* calls for *seconds* (one block at least),
writes the ns of each block into *samples* and returns how many it wrote."""

ROUNDS: Final = 5
BLOCK_NS: Final = 30_000
"""Length of a block of quick calls: a clock reading of 30 ns is a thousandth of it."""
SLOW_CALL_NS: Final = 2_000
"""A call that takes so long is timed by itself."""
WARM_UP_SECONDS: Final = 0.005
WARM_UP_CALLS: Final = 50
SAMPLES_PER_SECOND: Final = 1_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast one side was, in one round or at the median over its rounds. Times are of one call in us."""

    p50_us: float
    p99_us: float
    calls_s: float
    """Calls per second of the time inside the timed blocks."""
    calls: int
    """Calls made in all, the warm-up's too."""


class _Side:
    """One of the two that alternate."""

    def __init__(self, contender: Contender, samples: Int64Array) -> None:
        self._contender = contender
        self._samples = samples
        self._calls = 1

    def warm_up(self) -> int:
        """Find out how many calls a block needs, and let caches and connections settle; return the calls made."""
        first = self._run(WARM_UP_SECONDS)
        if np.median(first) >= SLOW_CALL_NS:
            return len(first)
        self._calls = WARM_UP_CALLS
        blocks = self._run(WARM_UP_SECONDS)
        made = len(first) + len(blocks) * self._calls
        self._calls = max(1, round(BLOCK_NS * WARM_UP_CALLS / max(1.0, float(np.median(blocks)))))
        return made

    def round(self, seconds: float) -> Speed:
        """Measure for *seconds*."""
        blocks = self._run(seconds)
        call_us = blocks / (1e3 * self._calls)
        p50, p99 = np.percentile(call_us, (50, 99))
        return Speed(float(p50), float(p99), 1e6 / float(call_us.mean()), len(blocks) * self._calls)

    def _run(self, seconds: float) -> npt.NDArray[np.int64]:
        """Return the ns of each block."""
        count = self._contender(self._calls, self._samples, seconds)
        return np.frombuffer(self._samples, np.int64, count)


def alternate(ours: Contender, limit: Contender | None, seconds: float) -> tuple[Speed, Speed | None]:
    """Measure both sides for *seconds* each, in rounds that take turns; return our speed and the limit's."""
    sides = _sides((limit, ours) if limit is not None else (ours,), seconds / ROUNDS)
    warm = [side.warm_up() for side in sides]
    rounds = [[side.round(seconds / ROUNDS) for side in sides] for _ in range(ROUNDS)]
    speeds = [_middle(column, made) for column, made in zip(zip(*rounds, strict=True), warm, strict=True)]
    return speeds[-1], speeds[0] if limit is not None else None


def pairs(ours: Contender, limit: Contender, seconds: float, rounds: int) -> list[tuple[Speed, Speed]]:
    """Measure both sides for *seconds* each, in *rounds* that take turns; return our speed and the limit's in each."""
    near, far = _sides((ours, limit), seconds / rounds)
    far.warm_up()
    near.warm_up()
    found: list[tuple[Speed, Speed]] = []
    for _ in range(rounds):
        bare = far.round(seconds / rounds)
        found.append((near.round(seconds / rounds), bare))
    return found


def _sides(contenders: Sequence[Contender], seconds: float) -> list[_Side]:
    samples = array("q", bytes(8 * (int(SAMPLES_PER_SECOND * seconds) + 1_000)))
    return [_Side(contender, samples) for contender in contenders]


def _middle(rounds: Sequence[Speed], warm: int) -> Speed:
    """Return the medians of one side's rounds; *warm* calls were made before."""
    p50, p99, calls_s = (median(getattr(speed, name) for speed in rounds) for name in ("p50_us", "p99_us", "calls_s"))
    return Speed(p50, p99, calls_s, warm + sum(speed.calls for speed in rounds))


def in_python(run: Callable[[Sequence[T]], None], arguments: Sequence[T]) -> Contender:
    """Return a contender that is a Python loop: ``run`` makes one call for each argument that it gets.

    The arguments are used in turn, and cut into blocks outside of the timed part.
    """

    def contend(calls: int, samples: Int64Array, seconds: float) -> int:
        turn = cycle(arguments)
        blocks = cycle([list(islice(turn, calls)) for _ in range(max(1, len(arguments) // calls))])
        count, end = 0, perf_counter_ns() + int(seconds * 1e9)
        for block in islice(blocks, len(samples)):
            begin = perf_counter_ns()
            run(block)
            now = perf_counter_ns()
            samples[count] = now - begin
            count += 1
            if now >= end:
                break
        return count

    return contend
