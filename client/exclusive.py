"""Which slabs handles have for their session alone, and when the server is told that none has one any more.

The server knows which session a slab belongs to, and nothing of handles. So an open whose reply is on the way is not
known here yet when the last handle that was is closed: it finds that out, and asks the server again.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import count

from farpool.client.session import Session
from farpool.protocol.messages import Detach

__all__ = ["Exclusives"]

NO_HANDLE = 0


class Exclusives:
    """The handles by slab. Thread-safe."""

    def __init__(self, session: Session, transport: str) -> None:
        self.dropped: deque[tuple[int, int]] = deque()
        """Slab and number of handles that the collector took; dealt with before the next request."""
        self._session = session
        self._transport = transport
        self._numbers: dict[int, set[int]] = {}
        self._fresh = count(1)
        self._given_up = 0
        self._serial = 0
        self._lock = threading.RLock()

    def mark(self) -> int:
        """Return what :meth:`claim` must know of the time before the server was asked."""
        return self._given_up

    def claim(self, slab_id: int, serial: int, mark: int) -> int:
        """Return the number of a handle that has the slab alone in the client's session *serial*.

        0 if it may have been given up since *mark*, or that session has ended.
        """
        with self._lock:
            if mark != self._given_up or serial != self._serial:
                return NO_HANDLE
            number = next(self._fresh)
            self._numbers.setdefault(slab_id, set()).add(number)
            return number

    def has(self, slab_id: int, number: int) -> bool:
        """Tell whether the handle of that number has the slab alone still."""
        return number in self._numbers.get(slab_id, ())

    def give_up(self, slab_id: int, number: int = NO_HANDLE) -> None:
        """Forget a handle, or an open that failed, and let other sessions in again unless another handle has it."""
        with self._lock:
            numbers = self._numbers.get(slab_id, set())
            if number != NO_HANDLE and number not in numbers:
                return
            numbers.discard(number)
            if numbers:
                return
            self._numbers.pop(slab_id, None)
            self._given_up += 1
            request = Detach(id=slab_id, generation=0, transport=self._transport, exclusive=True)
            self._session.part(request, self._serial)

    def begin_anew(self, serial: int) -> None:
        """Forget all: another session of the client's has taken the place of theirs."""
        with self._lock:
            self._numbers.clear()
            self._serial = serial

    def lose(self, slab_id: int) -> None:
        """Forget all handles of a slab that the server has taken from the session."""
        with self._lock:
            self._numbers.pop(slab_id, None)

    def sweep(self) -> None:
        """Deal with what the collector took."""
        while self.dropped:
            try:
                self.give_up(*self.dropped.popleft())
            except IndexError:
                return  # another thread was quicker
