"""How late this machine wakes up a thread that does nothing but sleep: what no call that waits can be quicker than.

On two cores that are busy with other tests a thread waits for its turn now and then, for up to a second. A test that
allowed each call a second would hold none of them to its deadline; so it is measured, beside the calls, what they cost.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from heapq import nlargest
from math import inf
from typing import Final

__all__ = ["SLACK", "patience", "watched_lateness"]

NAP: Final = 0.01
"""Seconds that the thread sleeps at a time."""

SLACK: Final = float(os.environ.get("FARPOOL_TEST_ALLOWANCE", "0.1"))
"""Seconds that a call's end may be late beyond that."""

TURNS: Final = 5
"""Times that the end of a call may wait for a processor: in its own thread, in one that holds what it waits for, in the
loop's. Where the machine is idle each costs less than a millisecond."""

KEPT: Final = 1 << 16
"""Naps that are remembered: those of more than ten minutes."""


class _Sleeper:
    """The thread, and by the end of each nap how late that was."""

    def __init__(self) -> None:
        self._naps: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._due = inf
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sleeper")
        self._thread.start()

    def _run(self) -> None:
        while True:
            due = self._due = time.monotonic() + NAP
            if self._enough.wait(NAP):
                return
            now = time.monotonic()
            self._naps.append((now, now - due))

    def worst(self, since: float) -> float:
        """Return how late it was in the worst few naps since then, together; a nap that should be over counts."""
        late = max(0.0, time.monotonic() - self._due)
        return sum(nlargest(TURNS, [late, *(late for end, late in list(self._naps) if end >= since)]))

    def end(self) -> None:
        """End the thread."""
        self._enough.set()
        self._thread.join()


_sleepers: list[_Sleeper] = []


@contextmanager
def watched_lateness() -> Generator[None]:
    """Measure, for what ``patience`` allows within the block."""
    sleeper = _Sleeper()
    _sleepers.append(sleeper)
    try:
        yield
    finally:
        _sleepers.remove(sleeper)
        sleeper.end()


def patience(timeout: float, since: float = -inf) -> float:
    """Return how long a call with that timeout, begun at *since*, may have taken: a tenth more, and the lateness."""
    return timeout * 1.1 + SLACK + max((sleeper.worst(since) for sleeper in _sleepers), default=0.0)
