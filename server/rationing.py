"""Lines that strangers can cause: noted one by one up to a rate, and of a flood of them the rest is counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

__all__ = ["BURST", "LINES_PER_SECOND", "Allowance", "RationedLog"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.server")

LINES_PER_SECOND: Final = 50.0
BURST: Final = 200.0
"""Lines that are noted one by one, so that nobody fills the disk."""

TELL_SECONDS: Final = 1.0
"""After the first line that was left out it is told how many were."""


class Allowance:
    """How many lines may be noted now. Not thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = BURST
        self._counted_at = clock()

    def take(self) -> bool:
        """Tell whether one more line may be noted, and count it."""
        now = self._clock()
        self._left = min(BURST, self._left + (now - self._counted_at) * LINES_PER_SECOND)
        self._counted_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class RationedLog:
    """The server's log for what strangers cause; each kind of event has an allowance. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._allowances: dict[str, Allowance] = {}
        self._left_out: dict[str, int] = {}

    def info(self, event: str, **fields: Any) -> None:
        """Note what is no cause for concern."""
        if self._may_note(event):
            log.info(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Note what an operator should see."""
        if self._may_note(event):
            log.warning(event, **fields)

    def _may_note(self, event: str) -> bool:
        with self._lock:
            allowance = self._allowances.get(event)
            if allowance is None:
                allowance = self._allowances[event] = Allowance(self._loop.time)
            if allowance.take():
                return True
            self._left_out[event] = self._left_out.get(event, 0) + 1
            first = self._left_out[event] == 1
        if first:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so has the log
                self._loop.call_soon_threadsafe(self._loop.call_later, TELL_SECONDS, self._tell, event)
        return False

    def _tell(self, event: str) -> None:
        with self._lock:
            number = self._left_out.pop(event, 0)
        log.warning("lines left out", of=event, number=number)
