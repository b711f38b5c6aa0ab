"""When leased slabs end. Renewals cost nothing: a lease's deadline is asked for again when it comes up.

While the owner's session has not ended, its heartbeats and requests renew the lease; a lease shorter than two
heartbeats lasts two. From the owner's last sign of life on the time to live runs out, unless a session that
attaches the slab takes the lease over.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from farpool.server.sessions import Session, SessionState, SessionTable
from farpool.server.slabs import Slab, SlabTable

__all__ = ["Leases"]


class Leases:
    """The deadlines of the leased slabs. ``expire`` ends one. Not thread-safe."""

    def __init__(
        self,
        slabs: SlabTable,
        sessions: SessionTable,
        watch: Callable[[Callable[[], float], Callable[[], None]], None],
        expire: Callable[[Slab], None],
    ) -> None:
        self._slabs = slabs
        self._sessions = sessions
        self._watch = watch
        self._expire = expire

    def begin(self, slab: Slab) -> None:
        """Watch over a slab if its lease is a time to live."""
        if slab.ttl is not None:
            self._watch(lambda: self.deadline(slab), lambda: self._expire(slab))

    def deadline(self, slab: Slab) -> float:
        """Return when the slab ends unless renewed, on the server's clock; infinity for other leases."""
        ttl = slab.ttl
        if ttl is None or slab.state != "live":
            return math.inf
        owner = self._sessions.get(slab.owner) if slab.owner is not None else None
        if owner is None:
            return slab.deadline
        if owner.state is SessionState.CONNECTED:
            return owner.last_seen + max(ttl, owner.timeout / 2)
        return max(owner.last_seen + ttl, self._sessions.deadline(owner))

    def orphan(self, slab: Slab, owner: Session) -> float:
        """Stop the renewals of an ended session; return the deadline from its last sign of life on."""
        slab.deadline = owner.last_seen + (slab.ttl or 0.0)
        self._slabs.own(slab, None)
        self.begin(slab)
        return slab.deadline

    def adopt(self, slab: Slab, session: Session) -> bool:
        """Let *session* renew a leased slab that nobody renews; return whether it took it over."""
        if slab.ttl is None or slab.owner is not None:
            return False
        self._slabs.own(slab, session.id)
        slab.deadline = math.inf
        return True
