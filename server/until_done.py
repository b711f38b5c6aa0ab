"""What must be done, and is tried again where there was no memory for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

__all__ = ["until_done"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.memory")

PAUSE_SECONDS: Final = 1.0


def until_done(work: Callable[[], None]) -> None:
    """Do *work* now, and once more after a pause each time that it raises ``MemoryError``. The loop's thread calls it.

    *work* does what is left of it when it is called again.
    """
    try:
        work()
    except MemoryError:
        asyncio.get_running_loop().call_later(PAUSE_SECONDS, until_done, work)
        log.error("no memory to clear up with; it is tried again", seconds=PAUSE_SECONDS)
