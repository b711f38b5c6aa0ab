"""The pauses between attempts to reach a server that is gone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from farpool.client.deadlines import seconds_left

__all__ = ["Backoff"]

FIRST_PAUSE: Final = 0.010
LONGEST_PAUSE: Final = 0.250
"""Seconds between attempts while somebody waits; each pause is twice the one before."""


@dataclass(slots=True)
class Backoff:
    """Pauses that grow from 10 ms to *longest* seconds, and never pass the deadline."""

    deadline: float
    longest: float = LONGEST_PAUSE
    pause: float = FIRST_PAUSE

    def wait(self) -> bool:
        """Sleep for the next pause; return False at once if the deadline has passed."""
        left = seconds_left(self.deadline)
        if not left:
            return False
        time.sleep(min(self.pause, left))
        self.pause = min(self.pause * 2, self.longest)
        return True
