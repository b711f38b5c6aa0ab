"""One timer over many deadlines that mostly move later: sessions' silence, graces, leases.

An entry asks for its deadline again when it comes up, so that a renewal costs nothing. Time comes from an
injected clock; the loop that wakes us does too.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

__all__ = ["Clock", "Deadlines", "boot_clock", "boot_id"]

Clock = Callable[[], float]
"""Seconds of CLOCK_BOOTTIME, which counts the time that the machine was suspended."""

STALL_SECONDS = 1.0
"""A wake-up that comes this late means that we were stopped, not that all our peers were silent."""

LONGEST_WAIT = 60.0
"""The loop's clock stands still while the machine is suspended; so look at ours at least this often."""


def boot_clock() -> float:
    """Return seconds since the machine booted, with the time it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


class _Handle(Protocol):
    def cancel(self) -> None: ...


class Deadlines:
    """A heap of deadlines with one timer; ``stalled`` is called when the timer itself was held up.

    Not thread-safe: everything runs in the loop's thread.
    """

    def __init__(
        self,
        clock: Clock,
        call_later: Callable[[float, Callable[[], None]], _Handle],
        stalled: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._stalled = stalled
        self._heap: list[tuple[float, int, Callable[[], float], Callable[[], None]]] = []
        self._order = itertools.count()
        self._compact_at = 1024
        self._timer: _Handle | None = None
        self._wake_at = math.inf

    def __len__(self) -> int:
        return len(self._heap)

    def watch(self, deadline: Callable[[], float], expire: Callable[[], None]) -> None:
        """Call *expire* when *deadline* has passed. Infinity says that there is nothing to wait for.

        Watch again when a deadline has moved earlier; entries that are watched twice expire once if *expire*
        makes their deadline infinite.
        """
        when = deadline()
        if when == math.inf:
            return
        if len(self._heap) >= self._compact_at:
            self._compact()
        heapq.heappush(self._heap, (when, next(self._order), deadline, expire))
        if when < self._wake_at:
            self._arm()

    def close(self) -> None:
        """Stop the timer and forget every entry."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def run(self) -> None:
        """Expire what is due; the timer calls this."""
        now = self._clock()
        if self._wake_at + STALL_SECONDS < now:
            self._stalled()
        while self._heap and self._heap[0][0] <= now:
            _, _, deadline, expire = heapq.heappop(self._heap)
            when = deadline()
            if when <= now:
                expire()
            elif when != math.inf:
                heapq.heappush(self._heap, (when, next(self._order), deadline, expire))
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_at = math.inf
        if self._heap:
            now = self._clock()
            wait = min(max(0.0, self._heap[0][0] - now), LONGEST_WAIT)
            self._wake_at = now + wait
            self._timer = self._call_later(wait, self.run)

    def _compact(self) -> None:
        alive = [entry for entry in self._heap if entry[2]() != math.inf]
        heapq.heapify(alive)
        self._heap = alive
        self._compact_at = 2 * len(alive) + 1024
