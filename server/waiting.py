"""Words that clients wait for: parked requests, and the marks that make others' stores wake the waiters.

A store by numpy, or by an RDMA device, wakes nobody: so the words are looked at again every millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from farpool.native import futex
from farpool.protocol.errors import FarpoolError, InvalidArgument, OutOfBounds, StaleSlab
from farpool.protocol.message_base import Done
from farpool.protocol.waiting_messages import LONGEST_WAIT, WATCH_SECONDS, Notify, Wait, Watch, Word
from farpool.server.deadlines import Clock
from farpool.server.lifecycle import Lifecycle
from farpool.server.slabs import Slab

__all__ = ["Waiting"]

LOOK_SECONDS: Final = 0.001
"""How long a change that nobody tells of stays unseen."""

MOST_PARKED: Final = 32
"""Parked requests of one session; further ones are answered at once, and their clients ask again."""

SEVERAL: Final = (1 << 64) - 1
"""The mark of a slab with more than one word that is waited for; of one word it is the offset + 1."""


@dataclass(slots=True)
class _Parked:
    slab: Slab
    request: Wait
    session: int
    until: float
    answer: asyncio.Future[Word]

    def look(self, now: float) -> None:
        """Answer if the word has changed, the slab has ended or the time is over."""
        if self.answer.done():
            return
        try:
            value = _load(self.slab, self.request.offset)
        except FarpoolError as error:
            self.answer.set_exception(error)
            return
        if value != self.request.expected or now >= self.until:
            self.answer.set_result(Word(value=value))


class Waiting:
    """Everything that is waited for in one server. The loop's thread alone uses it."""

    def __init__(self, life: Lifecycle, clock: Clock) -> None:
        self._life = life
        self._clock = clock
        self._parked: list[_Parked] = []
        self._watched: dict[int, tuple[Slab, dict[int, float]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def handle(self, session_id: int, slab: Slab, request: Wait | Watch | Notify) -> Done | Word | Awaitable[Word]:
        """Do what *request* asks of *slab*, which the session may reach."""
        _check(slab, request.offset)
        match request:
            case Wait():
                return self._wait(session_id, slab, request)
            case Watch():
                self._watch(slab, request.offset, WATCH_SECONDS)
            case Notify():
                futex.wake(slab.memory(), request.offset)
                self.look()
        return Done()

    def withdraw(self, slab: Slab, sessions: set[int]) -> None:
        """End what some sessions wait for in a slab that they may not see any more."""
        for parked in self._parked:
            if parked.slab is slab and parked.session in sessions and not parked.answer.done():
                parked.answer.set_exception(_stale(slab))
        self.look()

    def look(self) -> None:
        """Look at every word that is waited for: some may have changed."""
        now = self._clock()
        for parked in self._parked:
            parked.look(now)
        self._parked = [parked for parked in self._parked if not parked.answer.done()]

    def _wait(self, session_id: int, slab: Slab, request: Wait) -> Word | Awaitable[Word]:
        value = _load(slab, request.offset)
        crowded = sum(parked.session == session_id for parked in self._parked) >= MOST_PARKED
        if value != request.expected or crowded or not request.seconds > 0:
            return Word(value=value)
        loop = asyncio.get_running_loop()
        until = self._clock() + min(request.seconds, LONGEST_WAIT)
        parked = _Parked(slab, request, session_id, until, loop.create_future())
        self._parked.append(parked)
        self._watch(slab, request.offset, LONGEST_WAIT)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_SECONDS, self._look_again)
        return parked.answer

    def _look_again(self) -> None:
        self.look()
        again = bool(self._parked)
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again) if again else None

    # Marks --------------------------------------------------------------------------------------------

    def _watch(self, slab: Slab, offset: int, seconds: float) -> None:
        _, offsets = self._watched.setdefault(slab.id, (slab, {}))
        fresh = offset not in offsets
        offsets[offset] = max(offsets.get(offset, 0.0), self._clock() + seconds)
        if fresh:
            self._mark(slab, offsets)
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._expire)

    def _expire(self) -> None:
        now = self._clock()
        for slab, offsets in list(self._watched.values()):
            over = [offset for offset, until in offsets.items() if until <= now]
            for offset in over:
                del offsets[offset]
            if slab.state != "live" or not offsets:
                del self._watched[slab.id]
            if slab.state == "live":  # also to mark memory that the slab has got since
                self._mark(slab, offsets)
        again = bool(self._watched)
        self._expiry = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._expire) if again else None

    def _mark(self, slab: Slab, offsets: dict[int, float]) -> None:
        mark = 0 if not offsets else SEVERAL if len(offsets) > 1 else next(iter(offsets)) + 1
        self._life.generations.watch(slab.slot, mark)
        self._life.planes.watch(slab, mark)


def _check(slab: Slab, offset: int) -> None:
    if not 0 <= offset <= slab.nbytes - 8:
        raise OutOfBounds(
            f"{slab.label} has {slab.nbytes} bytes: there is no word at offset {offset}",
            offset=offset,
            nbytes=slab.nbytes,
        )
    if offset % 8:
        raise InvalidArgument(f"a word's offset is a multiple of 8, not {offset}")


def _load(slab: Slab, offset: int) -> int:
    if slab.state != "live":
        raise _stale(slab)
    return slab.memory().load(offset)


def _stale(slab: Slab) -> StaleSlab:
    return StaleSlab(f"{slab.label} was freed, revoked or has expired", id=slab.id)
