"""End slabs whose file a client has cut short: what the server reads there from then on are zeroes of its own."""

from __future__ import annotations

import asyncio

import structlog

from farpool.native import bus_guard
from farpool.server.lifecycle import REVOKED, Lifecycle

__all__ = ["MemoryWatch"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.memory")


class MemoryWatch:
    """Outlives SIGBUS in the slabs of *life* while it is open."""

    def __init__(self, loop: asyncio.AbstractEventLoop, life: Lifecycle) -> None:
        self._loop = loop
        self._life = life
        self._fd = bus_guard.install()
        loop.add_reader(self._fd, self._look)

    def close(self) -> None:
        """Watch no more. May be called twice."""
        self._loop.remove_reader(self._fd)

    def _look(self) -> None:
        bus_guard.seen()
        for slab in self._life.slabs.all():
            if slab.lost:
                log.error(
                    "slab ended: its file was cut short by a client that maps it",
                    slab=slab.id,
                    name=slab.name,
                    tenant=slab.tenant,
                )
                self._life.end_slab(slab, REVOKED)
