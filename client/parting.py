"""Requests that ask for no reply, such as that a slab was let go of: they leave before the next request.

What could not leave over one connection is put back before anything is sent over the next: else the word that a slab
was let go of could come behind the request that attaches it anew.
"""

from __future__ import annotations

import threading
from collections import deque

from farpool.protocol.messages import Request, encode_request

__all__ = ["EVERY_SESSION", "Parting"]

EVERY_SESSION = 0


class Parting:
    """What one client has still to say. Adding takes no lock; the rest is done by who holds ``sending``."""

    def __init__(self) -> None:
        self.sending = threading.RLock()
        """Held while anything is sent, over whichever connection; re-entrant as the connection's own lock is."""
        self._frames: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, request: Request, serial: int = EVERY_SESSION) -> None:
        """Queue a request, which means nothing but in the client's session of that number unless it is 0."""
        self._frames.append((serial, encode_request(0, request)))

    def take(self, serial: int) -> list[tuple[int, bytes]]:
        """Return what is to be said in the client's session of that number; what was of another is dropped."""
        taken = [self._frames.popleft() for _ in range(len(self._frames))]
        return [frame for frame in taken if frame[0] in (EVERY_SESSION, serial)]

    def put_back(self, frames: list[tuple[int, bytes]]) -> None:
        """Queue again what was taken and has not left."""
        self._frames.extendleft(reversed(frames))
