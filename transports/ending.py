"""What may be closed at any moment, also by a finalizer in the thread that holds its lock.

The collector runs in any thread, with any lock held. So closing waits for no lock at all: it says that the end has
come, and whoever holds the lock, in this thread or another, lets go of what there is as soon as it gives the lock back.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager

from farpool.protocol.errors import DeadlineExceeded, StaleSlab

__all__ = ["Ending"]


class Ending(ABC):
    """Things that one thread at a time uses, until they are closed. Thread-safe."""

    BUSY = "another thread was busy until the deadline; raise timeout="
    """What is said to a thread that did not get the lock in time."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise ``StaleSlab`` once it was closed."""
        if self.ended.is_set():
            raise StaleSlab("the pool is closed; connect again")

    @contextmanager
    def held(self, deadline: float) -> Generator[None]:
        """Hold the lock; raises ``StaleSlab`` if the end has come by the time that the block is done, or before it.

        Raises:
            DeadlineExceeded: another thread had it until *deadline*.
        """
        if not self._lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX))):
            raise DeadlineExceeded(self.BUSY)
        try:
            self.check()
            yield
            self.check()
        finally:
            self._lock.release()
            self._let_go_if_ended()

    def end(self) -> None:
        """Let go of everything, at once or when the lock is given back. Waits for nobody. Idempotent."""
        self.ended.set()
        self._let_go_if_ended()

    def _let_go_if_ended(self) -> None:
        # Who finds the lock taken leaves it to its holder, who looks here again after giving it back.
        if self.ended.is_set() and self._lock.acquire(blocking=False):
            try:
                self._let_go()
            finally:
                self._lock.release()

    @abstractmethod
    def _let_go(self) -> None:
        """Close what there is; called with the lock held, and perhaps more than once."""
