"""Which words somebody waits for: the marks that make whoever stores to a slab wake the waiters."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from farpool.protocol.errors import QuotaExceeded
from farpool.protocol.waiting_messages import WATCH_SECONDS
from farpool.server.deadlines import Clock
from farpool.server.lifecycle import Lifecycle
from farpool.server.slabs import Slab

__all__ = ["MOST_WATCHED", "Watches"]

MOST_WATCHED: Final = 4096
"""Slabs whose words one tenant asks to be woken for."""

MOST_WORDS: Final = 8
"""Words of one slab that are told apart; of more all of its words are taken for watched."""

EXPIRE_AT_ONCE: Final = 32
"""Slabs that are looked through for what is over before the loop turns to others."""

SEVERAL: Final = (1 << 64) - 1
"""The mark of a slab with more than one word that is waited for; of one word it is the offset + 1."""


class _Watched:
    """The watched words of one slab, and until when each is."""

    __slots__ = ("all_until", "shown", "slab", "tenant", "words")

    def __init__(self, slab: Slab, tenant: str) -> None:
        self.slab = slab
        self.tenant = tenant
        """Who asked first, and is charged for it."""
        self.words: dict[int, float] = {}
        self.all_until = 0.0
        self.shown: tuple[int, int] | None = None
        """The slot and the mark that clients see."""

    def add(self, offset: int, until: float) -> bool:
        """Watch a word until then at least; return whether it is a new one."""
        fresh = offset not in self.words
        if fresh and len(self.words) == MOST_WORDS:
            self.all_until = max(self.all_until, until)
            return False  # and the mark says that there are several already
        self.words[offset] = max(self.words.get(offset, 0.0), until)
        return fresh

    def expire(self, now: float) -> None:
        """Forget words that nobody waits for any more."""
        self.words = {offset: until for offset, until in self.words.items() if until > now}

    def mark(self, now: float) -> int:
        """Return what those who store look at."""
        if self.all_until > now or len(self.words) > 1:
            return SEVERAL
        return next(iter(self.words)) + 1 if self.words else 0


class Watches:
    """Every watched word of one server. The loop's thread alone uses it."""

    def __init__(self, life: Lifecycle, clock: Clock) -> None:
        self._life = life
        self._clock = clock
        self._slabs: dict[int, _Watched] = {}
        self._of_tenant: Counter[str] = Counter()
        self._to_look_at: list[_Watched] = []
        self._expiry: asyncio.TimerHandle | None = None

    def has_room(self, tenant: str, slab: Slab) -> bool:
        """Tell whether a tenant may watch a word of the slab."""
        return slab.id in self._slabs or self._of_tenant[tenant] < MOST_WATCHED

    def watch(self, tenant: str, slab: Slab, offset: int, seconds: float) -> None:
        """Let stores to the word wake those who wait for it; raise ``QuotaExceeded``."""
        watched = self._slabs.get(slab.id)
        if watched is None:
            if not self.has_room(tenant, slab):
                raise QuotaExceeded(
                    f'the tenant "{tenant}" has asked to be woken for words of {MOST_WATCHED} slabs, which is the '
                    "limit; wait for words of fewer slabs at a time, or look at them now and then",
                    limit=MOST_WATCHED,
                )
            watched = self._slabs[slab.id] = _Watched(slab, tenant)
            self._of_tenant[tenant] += 1
        now = self._clock()
        if watched.add(offset, now + seconds):
            self._show(watched, now)
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._begin_to_expire)

    def _begin_to_expire(self) -> None:
        self._to_look_at = list(self._slabs.values())
        self._expire_some()

    def _expire_some(self) -> None:
        loop, now = asyncio.get_running_loop(), self._clock()
        for watched in self._to_look_at[:EXPIRE_AT_ONCE]:
            self._expire(watched, now)
        del self._to_look_at[:EXPIRE_AT_ONCE]
        if self._to_look_at:
            loop.call_soon(self._expire_some)
        else:
            self._expiry = loop.call_later(WATCH_SECONDS, self._begin_to_expire) if self._slabs else None

    def _expire(self, watched: _Watched, now: float) -> None:
        watched.expire(now)
        if watched.slab.state == "live":
            self._show(watched, now)
        if watched.slab.state != "live" or not watched.mark(now):
            del self._slabs[watched.slab.id]
            self._of_tenant[watched.tenant] -= 1

    def _show(self, watched: _Watched, now: float) -> None:
        """Show the mark; to data planes always: the slab may be attached anew since, or have other memory."""
        slab, mark = watched.slab, watched.mark(now)
        if watched.shown != (slab.slot, mark):
            self._life.generations.watch(slab.slot, mark)
            watched.shown = (slab.slot, mark)
        self._life.planes.watch(slab, mark)
