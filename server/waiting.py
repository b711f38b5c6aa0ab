"""Words that clients wait for: requests that are parked until a word has changed.

A store by numpy, or by an RDMA device, wakes nobody: so the words are looked at again every millisecond. Each tenant's
are looked at in turns of its own, so that what one waits for, however much, delays no other's waiter.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable
from typing import Final

from farpool.native import futex
from farpool.protocol.errors import FarpoolError, InvalidArgument, OutOfBounds, QuotaExceeded, StaleSlab
from farpool.protocol.message_base import Done
from farpool.protocol.waiting_messages import LONGEST_WAIT, WATCH_SECONDS, Notify, Wait, Watch, Word
from farpool.server.deadlines import Clock
from farpool.server.lifecycle import Lifecycle
from farpool.server.sessions import Session
from farpool.server.slabs import Slab
from farpool.server.turns import Turns
from farpool.server.watches import Watches

__all__ = ["MOST_OF_TENANT", "Waiting"]

LOOK_SECONDS: Final = 0.001
"""How long a change that nobody tells of stays unseen."""

MOST_PARKED: Final = 32
"""Parked requests of one session; further ones are answered at once, and their clients ask again."""

MOST_OF_TENANT: Final = 4096
"""Parked requests of one tenant; further ones are refused."""

LOOKS_A_TICK: Final = 128
"""Words of one tenant that are looked at in ``LOOK_SECONDS``: of more, each is looked at less often."""

LOOKS_AT_ONCE: Final = 16
"""Looks before the tenant's time is looked at."""

ANSWERS_A_TURN: Final = 8
"""Waits of one tenant that end in one turn: an answer takes much longer than a look."""


class _Parked:
    """One request that waits."""

    __slots__ = ("answer", "request", "session", "slab", "until", "withdrawn")

    def __init__(self, slab: Slab, request: Wait, session: int, until: float, answer: asyncio.Future[Word]) -> None:
        self.slab = slab
        self.request = request
        self.session = session
        self.until = until
        self.answer = answer
        self.withdrawn = False
        """Whether its session may not see the slab any more."""

    def look(self, now: float) -> bool:
        """Answer if the word has changed, the slab has ended or the time is over; return whether it is answered."""
        if self.answer.done():
            return True
        try:
            value = _load(self.slab, self.request.offset)
            if self.withdrawn:
                raise _stale(self.slab)
        except FarpoolError as error:
            self.answer.set_exception(error)
            return True
        if value == self.request.expected and now < self.until:
            return False
        self.answer.set_result(Word(value=value))
        return True


class _Waits:
    """All that one tenant waits for. It works in the tenant's turns, and pays for its looks with their time."""

    def __init__(self, tenant: str, turns: Turns, clock: Clock) -> None:
        self._tenant = tenant
        self._turns = turns
        self._clock = clock
        self._parked: OrderedDict[_Parked, None] = OrderedDict()  # the next to be looked at first
        self._of_slab: dict[int, dict[_Parked, None]] = {}
        self._of_session: Counter[int] = Counter()
        self._due = 0
        """How many of them are still to be looked at in this tick."""
        self._changed: dict[int, None] = {}
        """Slabs that were stored to."""
        self._told: deque[_Parked] = deque()
        """Those who wait for words of such a slab, as far as they have not been looked at."""
        self._looks_left = LOOKS_A_TICK
        """How many more may be looked at for stores before the next tick."""

    def __len__(self) -> int:
        return len(self._parked)

    def of_session(self, session_id: int) -> int:
        """Return how many are a session's."""
        return self._of_session[session_id]

    def add(self, parked: _Parked) -> None:
        """Wait for one more."""
        self._parked[parked] = None
        self._of_slab.setdefault(parked.slab.id, {})[parked] = None
        self._of_session[parked.session] += 1

    def tick(self) -> None:
        """Look at some, because time has passed."""
        self._due = min(len(self._parked), LOOKS_A_TICK)
        self._looks_left = LOOKS_A_TICK
        self._turns.wait(self._tenant, self)

    def changed(self, slab_id: int) -> None:
        """Look at those of a slab that was stored to."""
        if slab_id in self._of_slab:
            self._changed[slab_id] = None
            if self._looks_left:
                self._turns.wait(self._tenant, self)

    def withdraw(self, slab_id: int, sessions: set[int]) -> None:
        """End those of some sessions in a slab that they may not see any more."""
        for parked in self._of_slab.get(slab_id, ()):
            if parked.session in sessions:
                parked.withdrawn = True
        self.changed(slab_id)

    def work(self) -> None:
        """Look, while the tenant has time in this turn; what is left waits for the next one."""
        turns = self._turns
        answered = 0
        while True:
            begun = turns.begin()
            batch = self._next_batch()
            if not batch:
                return
            answered += self._look_at(batch)
            turns.end(self._tenant, begun)
            if answered >= ANSWERS_A_TURN or not turns.may_work(self._tenant):
                turns.wait(self._tenant, self)
                return

    def _next_batch(self) -> list[_Parked]:
        """Take the next ones to look at: half of them for a store to their slab, half because time has passed."""
        batch: list[_Parked] = []
        most = min(LOOKS_AT_ONCE // 2, self._looks_left)
        while len(batch) < most and (self._told or self._changed):
            if not self._told:
                self._told.extend(self._of_slab.get(self._changed.popitem()[0], ()))
            elif (parked := self._told.popleft()) in self._parked:
                batch.append(parked)
        self._looks_left -= len(batch)
        for _ in range(min(LOOKS_AT_ONCE - len(batch), self._due, len(self._parked))):
            parked = next(iter(self._parked))
            self._parked.move_to_end(parked)
            self._due -= 1
            batch.append(parked)
        return batch

    def _look_at(self, batch: list[_Parked]) -> int:
        now, answered = self._clock(), 0
        for parked in batch:
            if parked.look(now) and parked in self._parked:
                self._remove(parked)
                answered += 1
        self._looks_left += answered  # these are bounded by themselves
        return answered

    def _remove(self, parked: _Parked) -> None:
        del self._parked[parked]
        of_slab = self._of_slab[parked.slab.id]
        del of_slab[parked]
        if not of_slab:
            del self._of_slab[parked.slab.id]
        self._of_session[parked.session] -= 1
        if not self._of_session[parked.session]:
            del self._of_session[parked.session]


class Waiting:
    """Everything that is waited for in one server. The loop's thread alone uses it."""

    def __init__(self, life: Lifecycle, turns: Turns, clock: Clock) -> None:
        self._turns = turns
        self._clock = clock
        self._watches = Watches(life, clock)
        self._tenants: dict[str, _Waits] = {}
        self._timer: asyncio.TimerHandle | None = None

    def handle(self, session: Session, slab: Slab, request: Wait | Watch | Notify) -> Done | Word | Awaitable[Word]:
        """Do what *request* asks of *slab*, which the session may reach."""
        _check(slab, request.offset)
        match request:
            case Wait():
                return self._wait(session, slab, request)
            case Watch():
                self._watches.watch(session.tenant, slab, request.offset, WATCH_SECONDS)
            case Notify():
                futex.wake(slab.memory(), request.offset)
                self.changed(slab.id)
        return Done()

    def withdraw(self, slab: Slab, sessions: set[int]) -> None:
        """End what some sessions wait for in a slab that they may not see any more."""
        for waits in self._tenants.values():
            waits.withdraw(slab.id, sessions)

    def changed(self, slab_id: int) -> None:
        """Look soon at the words of a slab that somebody waits for: some may have changed."""
        for waits in self._tenants.values():
            waits.changed(slab_id)

    def _wait(self, session: Session, slab: Slab, request: Wait) -> Word | Awaitable[Word]:
        value = _load(slab, request.offset)
        waits = self._tenants.get(session.tenant)
        if waits is None:
            waits = _Waits(session.tenant, self._turns, self._clock)
        crowded = waits.of_session(session.id) >= MOST_PARKED
        if value != request.expected or crowded or not request.seconds > 0:
            return Word(value=value)
        if len(waits) >= MOST_OF_TENANT:
            raise QuotaExceeded(
                f'the tenant "{session.tenant}" waits for {MOST_OF_TENANT} words at once, which is the limit; wait for '
                "fewer at a time, for one that stands for several, or look at them now and then",
                limit=MOST_OF_TENANT,
            )
        self._tenants[session.tenant] = waits
        loop = asyncio.get_running_loop()
        until = self._clock() + min(request.seconds, LONGEST_WAIT)
        parked = _Parked(slab, request, session.id, until, loop.create_future())
        waits.add(parked)
        if self._watches.has_room(session.tenant, slab):  # else stores are seen a moment later
            self._watches.watch(session.tenant, slab, request.offset, LONGEST_WAIT)
        if self._timer is None:
            self._timer = loop.call_later(LOOK_SECONDS, self._tick)
        return parked.answer

    def _tick(self) -> None:
        for tenant, waits in list(self._tenants.items()):
            if waits:
                waits.tick()
            else:
                del self._tenants[tenant]
        again = bool(self._tenants)
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._tick) if again else None


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
    word = slab.memory().load(offset)
    if slab.lost:  # a zero that stands in for the word
        raise _stale(slab)
    return word


def _stale(slab: Slab) -> StaleSlab:
    return StaleSlab(f"{slab.label} was freed, revoked or has expired", id=slab.id)
