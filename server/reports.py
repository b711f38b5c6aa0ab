"""What those who ask are told of a pool and its slabs."""

from __future__ import annotations

import os
import resource
from importlib.metadata import version
from typing import Final

from farpool.protocol.messages import Listing, ServerStat, SlabInfo, SlabList
from farpool.server.access import Access
from farpool.server.deadlines import Clock
from farpool.server.lifecycle import Lifecycle
from farpool.server.sessions import Session, SessionState
from farpool.server.slabs import Slab

__all__ = ["SERVER_NAME", "Reports"]

SERVER_NAME: Final = f"farpool/{version('farpool')}"

MOST_HOSTS: Final = 1000
"""Hosts of the quarantine in one reply, which is a frame of 1 MiB at most."""

MOST_LISTED: Final = 100
"""Slabs of one reply: a longer one would take the loop from others for longer than their own requests take."""


class Reports:
    """Looks at one pool, and changes nothing. Not thread-safe."""

    def __init__(self, life: Lifecycle, access: Access, clock: Clock, epoch: int) -> None:
        self._life = life
        self._access = access
        self._clock = clock
        self._epoch = epoch
        self._started = clock()

    def slab(self, slab: Slab) -> SlabInfo:
        """Return what anyone who may see the slab is told of it."""
        state: str = slab.state
        expires_in = None
        if slab.state == "live":
            if slab.lease == "session" and slab.owner is not None:
                owner = self._life.sessions.get(slab.owner)
                if owner is None or owner.state is not SessionState.CONNECTED:
                    state = "orphaned"
            elif slab.ttl is not None:
                expires_in = max(0.0, self._life.leases.deadline(slab) - self._clock())
        return SlabInfo(
            id=slab.id,
            generation=slab.life,
            nbytes=slab.nbytes,
            tenant=slab.tenant,
            name=slab.name,
            lease=slab.lease,
            expires_in=expires_in,
            state=state,
            attached=slab.attached,
            atomics=slab.atomics,
            commits=slab.commits,
            memory=0 if slab.generation == slab.life else slab.generation,
        )

    def slabs(self, session: Session, request: Listing) -> SlabList:
        """Return a page of the slabs that the session's tenant may see."""
        limit = min(max(1, request.limit), MOST_LISTED)
        slabs, more = self._life.slabs.page(session.tenant, request.after, limit, self._access.granted(session))
        return SlabList(slabs=[self.slab(slab) for slab in slabs], more=more)

    def pool(self, session: Session, *, draining: bool, addresses: list[str]) -> ServerStat:
        """Return the pool's numbers; who is behind them, and what is where on the host, to administrators alone."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        slabs, arena, privileged = self._life.slabs, self._life.arena, session.administrator
        return ServerStat(
            server=SERVER_NAME,
            epoch=self._epoch,
            pid=os.getpid() if privileged else 0,
            uptime=self._clock() - self._started,
            state="draining" if draining else "serving",
            arena=arena.path if privileged or arena.device is not None else "",
            capacity=slabs.capacity,
            allocated=slabs.allocated,
            reclaiming=slabs.reclaiming,
            free=slabs.free,
            slabs=len(slabs),
            sessions=len(self._life.sessions),
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            transports=self._life.planes.counters(),
            addresses=addresses,
            quarantined=self._life.quarantined(by_host=privileged)[:MOST_HOSTS],
        )
