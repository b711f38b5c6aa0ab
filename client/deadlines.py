"""Deadlines: seconds of ``time.monotonic()``, made once a call from its ``timeout``."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from farpool.protocol.errors import InvalidArgument
from farpool.protocol.units import shown

__all__ = ["MAX_TIMEOUT", "deadline_after", "parse_timeout", "seconds_left"]

MAX_TIMEOUT = 366 * 86400.0
"""Longest timeout in seconds; above it a lock's own limit comes near. A longer one is cut to it."""


def parse_timeout(timeout: object) -> float:
    """Return *timeout* in seconds; raises ``InvalidArgument`` unless it is a number over 0."""
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0:
        with suppress(OverflowError):  # an int that no float can hold
            return min(float(timeout), MAX_TIMEOUT)
    raise InvalidArgument(f"timeout must be seconds, more than 0, not {shown(timeout)}")


def deadline_after(timeout: float | None, default: float) -> float:
    """Return the moment at which a call with this *timeout* ends; None takes *default*."""
    return monotonic() + (default if timeout is None else parse_timeout(timeout))


def seconds_left(deadline: float) -> float:
    """Return the seconds until *deadline*, 0 if it has passed."""
    return max(deadline - monotonic(), 0.0)
