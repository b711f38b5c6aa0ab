"""The memory of slabs that have ended: charged to their tenants until nobody holds it any more.

Where the arena sees who holds memory, that alone counts: a client may keep what it said to have let go, or have let go
of what it cannot speak of any more. Elsewhere what clients say counts, and the death of those who say nothing.

No event tells that another process unmaps a file. So what is held is looked at when somebody says that he has let go,
when a session ends, and when its room is wanted, and apart from that ever more seldom. Not thread-safe.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.server.arena import Arena
from farpool.server.catalog import Catalog
from farpool.server.deadlines import Clock
from farpool.server.long_work import LONG_BYTES, LongWork
from farpool.server.own_mappings import close_mapping
from farpool.server.slabs import Slab, SlabTable

__all__ = ["Reclaiming"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.reclaiming")

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 5.0
"""Before the second look at what somebody holds, and between two looks at most."""

LOOKS_AT_ONCE: Final = 256
"""Slabs that are looked at for one event before the loop turns to others: a few microseconds each."""


@dataclass(slots=True, eq=False)
class Held:
    """An ended slab whose memory somebody holds."""

    slab: Slab
    pause: float = FIRST_SECONDS
    due: float = math.inf
    """When it is looked at again, on the server's clock."""


class Reclaiming:
    """The ended slabs of one server."""

    def __init__(
        self,
        arena: Arena,
        catalog: Catalog,
        slabs: SlabTable,
        work: LongWork,
        clock: Clock,
        watch: Callable[[Callable[[], float], Callable[[], None]], None],
    ) -> None:
        self.released: Callable[[int], None] = lambda _: None
        """Called with each session that had something of memory which has come back without its word."""
        self.closing = False
        """Whether the server ends: memory of slabs that end from now on is left to the kernel."""
        self._arena = arena
        self._catalog = catalog
        self._slabs = slabs
        self._work = work
        self._clock = clock
        self._watch = watch
        self._held: dict[str, dict[int, Held]] = {}  # by tenant, those first that were looked at longest ago
        self._looking: dict[int, asyncio.Future[bool]] = {}  # what threads are at
        self._once_more: set[int] = set()

    def restore(self) -> None:
        """Go on with what a restart brought back."""
        for slab in self._slabs.ended():
            self._keep(slab)

    def begin(self, slab: Slab) -> Awaitable[object] | None:
        """Take back the memory of a slab that has just ended; return what to wait for if that takes a while.

        If somebody holds it, it comes back when nobody does any more.
        """
        if self.closing and self._arena.sees_holders:
            return self._do(slab, partial(_leave, self._arena, slab.memory_id, slab.take_memory()))
        return self.look(slab)

    def look(self, slab: Slab) -> Awaitable[object] | None:
        """Take an ended slab's memory back if nobody holds it; return what to wait for if that takes a while."""
        if (looking := self._looking.get(slab.id)) is not None:
            self._once_more.add(slab.id)
            return looking
        mapping, may_ask = slab.take_memory(), self._may_ask(slab)
        if mapping is None and not may_ask:
            self._keep(slab)
            return None
        return self._do(slab, partial(_take_back, self._arena, slab.memory_id, mapping, may_ask))

    def look_again(self, tenant: str) -> Awaitable[object] | None:
        """Look at what is held of a tenant's slabs, and of others'; return what to wait for, if anything.

        There may be too much of it for one go: what was not looked at comes first the next time.
        """
        if self._arena.sees_holders:
            for slab in self._longest_ago(tenant):
                self.look(slab)
        return asyncio.gather(*self._looking.values(), return_exceptions=True) if self._looking else None

    def report(self) -> None:
        """Log what is left to the next server."""
        held = [each.slab for mine in self._held.values() for each in mine.values()]
        if held:
            log.warning("memory of ended slabs is held", slabs=len(held), nbytes=sum(slab.charged for slab in held))

    def _longest_ago(self, tenant: str) -> list[Slab]:
        """Return as many of the tenant's slabs as of all others': nobody's crowd keeps another's from its turn."""
        others = [theirs for name, theirs in self._held.items() if name != tenant]
        most = LOOKS_AT_ONCE // 2 if others else LOOKS_AT_ONCE
        mine = itertools.islice(self._held.get(tenant, {}).values(), most)
        theirs = (itertools.islice(theirs.values(), most // len(others) + 1) for theirs in others)
        return [held.slab for held in itertools.chain(mine, *theirs)]

    def _may_ask(self, slab: Slab) -> bool:
        return self._arena.sees_holders or not slab.holders

    def _do(self, slab: Slab, work: Callable[[], bool]) -> Awaitable[object] | None:
        if slab.charged > LONG_BYTES:
            future = self._looking[slab.id] = self._work.in_thread(work)
            future.add_done_callback(partial(self._done, slab))
            return future
        try:
            self._looked(slab, came_back=work())
        except OSError as error:
            self._failed(slab, error)
        return None

    def _done(self, slab: Slab, future: asyncio.Future[bool]) -> None:
        del self._looking[slab.id]
        once_more = slab.id in self._once_more
        self._once_more.discard(slab.id)
        error = None if future.cancelled() else future.exception()
        came_back = error is None and not future.cancelled() and future.result()
        if error is not None:
            self._failed(slab, error)
        elif once_more and not came_back:
            self.look(slab)
        else:
            self._looked(slab, came_back=came_back)

    def _failed(self, slab: Slab, error: BaseException) -> None:
        log.error("slab file not removed", slab=slab.id, error=str(error))
        self._keep(slab)

    def _looked(self, slab: Slab, *, came_back: bool) -> None:
        if came_back:
            self._settle(slab)
        else:
            self._keep(slab)

    def _keep(self, slab: Slab) -> None:
        mine = self._held.setdefault(slab.tenant, {})
        held = mine.pop(slab.id, None)
        if held is None:
            held = Held(slab)
            self._catalog.mark_reclaiming(slab.id)
        mine[slab.id] = held
        if held.due == math.inf and self._may_ask(slab):
            held.due = self._clock() + held.pause
            self._watch(lambda: held.due, lambda: self._look_in_time(held))

    def _look_in_time(self, held: Held) -> None:
        held.due, held.pause = math.inf, min(2 * held.pause, LONGEST_SECONDS)
        self.look(held.slab)

    def _settle(self, slab: Slab) -> None:
        mine = self._held.get(slab.tenant, {})
        if (held := mine.pop(slab.id, None)) is not None:
            held.due = math.inf
            if not mine:
                del self._held[slab.tenant]
        holders = list(slab.holders)
        for session_id, transport in holders:
            self._slabs.let_go(slab, session_id, transport)
        self._catalog.delete_slab(slab.id, held=bool(holders))
        self._slabs.settle(slab)
        for session_id, _ in holders:
            self.released(session_id)


def _take_back(arena: Arena, memory_id: int, mapping: MemoryMapping | None, may_ask: bool) -> bool:
    close_mapping(mapping)
    return may_ask and arena.reclaim(memory_id)


def _leave(arena: Arena, memory_id: int, mapping: MemoryMapping | None) -> bool:
    close_mapping(mapping)
    arena.remove(memory_id)
    return True
