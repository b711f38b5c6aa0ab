"""How slabs and sessions begin and end: table, arena, catalog, generation words and data planes in step.

Everything runs in the loop's thread but the making and the removal of long slabs, which wait for the kernel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

import structlog

from farpool.protocol.messages import Quarantined, encode_event
from farpool.server.arena import Arena
from farpool.server.catalog import Catalog, HolderRow, SessionRow, SlabRow
from farpool.server.dataplanes import DataPlanes
from farpool.server.deadlines import Clock, Deadlines
from farpool.server.exclusive import Exclusives
from farpool.server.generations import Generations
from farpool.server.grants import Grants
from farpool.server.leases import Leases
from farpool.server.long_work import LongWork
from farpool.server.making import Making
from farpool.server.quarantine import Quarantine
from farpool.server.reclaiming import Reclaiming
from farpool.server.sessions import Channel, Session, SessionEvent, SessionTable, Timing
from farpool.server.slabs import Slab, SlabTable
from farpool.server.stopping import leave_sessions, renumber, stopped_sessions
from farpool.server.until_done import until_done
from farpool.transports.contract import Mode

__all__ = ["EXPIRED", "REPLACED", "REVOKED", "Lifecycle"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.lifecycle")

ENDS_IN_ONE_GO: Final = 256
"""Slabs of an ended session that are removed before the loop turns to others."""

REVOKED: Final = "revoked"
EXPIRED: Final = "expired"
REPLACED: Final = "replaced"
"""Sent to those who mapped the memory that a slab has no more: they let go of it, and attach the new."""


class Lifecycle:
    """Owns every slab and session of one server. Not thread-safe."""

    def __init__(
        self,
        *,
        arena: Arena,
        catalog: Catalog,
        generations: Generations,
        planes: DataPlanes,
        timing: Timing,
        capacity: int,
        clock: Clock,
        deadlines: Deadlines,
        executor: Executor,
    ) -> None:
        self.arena = arena
        self.catalog = catalog
        self.generations = generations
        self.planes = planes
        self.slabs = SlabTable(capacity)
        self.work = LongWork(executor)
        self.reclaiming = Reclaiming(arena, catalog, self.slabs, self.work, clock, deadlines.watch)
        self.reclaiming.released = self._came_back
        self.making = Making(arena, catalog, generations, self.slabs, self.work)
        self.sessions = SessionTable(timing, clock, deadlines.watch, self._session_ended)
        self.leases = Leases(self.slabs, self.sessions, deadlines.watch, self._lease_ended)
        self.quarantine = Quarantine(catalog, self._let_go_of_all)
        self.exclusives = Exclusives(catalog, self.sessions)
        self.grants = Grants(catalog, self.slabs, clock, deadlines.watch)
        self.withdrawn: Callable[[Slab, set[int]], None] = lambda _, __: None
        """Called with a slab that was taken from some sessions, and these."""

    def watch_restored(self) -> None:
        """Watch over leases, grants and held memory that a restart brought back, and keep exclusive slabs so."""
        for slab in self.slabs.all():
            self.leases.begin(slab)
        self.exclusives.restore(self.slabs.all())
        self.grants.restore()
        self.sessions.remember(stopped_sessions(self.catalog))
        with self.catalog.together():
            self.reclaiming.restore()

    # Slabs begin --------------------------------------------------------------------------------------

    def admit(self, session: Session, slab: Slab, transport: str) -> dict[str, Any]:
        """Let a made slab live, attached to *session* if *transport* is not empty; return its parameters."""
        params: dict[str, Any] = {}
        holder = None
        try:
            self.generations.store(slab.slot, slab.generation)
            if transport:
                params = self._publish(session, slab, transport, "rw")
                if self.planes.may_map(transport):
                    holder = HolderRow(slab.id, session.id, transport, "rw")
            self.catalog.insert_slab(_row_of(slab), holder)
        except BaseException:
            self._unpublish(slab)
            self.making.abandon(slab)
            raise
        self.slabs.admit(slab)
        if transport:
            self.slabs.hold(slab, session.id, transport, "rw")
        self.leases.begin(slab)
        return params

    def record_copy(self, slab: Slab) -> None:
        """Note in the catalog what :meth:`Making.prepare_copy` has prepared, and nobody attaches."""
        with self.making.or_abandon(slab):
            self.catalog.insert_slab(_row_of(slab))

    def prepare(self, session: Session, slab: Slab, transport: str, mode: Mode) -> Awaitable[None] | None:
        """Return what to await before ``admit`` or ``attach`` of a large slab, or None."""
        assert session.served is not None
        slab.published.add(transport)  # a transport that only prepares is told of the slab's end, too
        return self.planes.prepare(transport, slab, session.served, _granted(session, slab, transport, mode))

    def attach(self, session: Session, slab: Slab, transport: str, mode: Mode) -> dict[str, Any]:
        """Let *session* reach the slab over *transport*; return the parameters for its client half."""
        granted = _granted(session, slab, transport, mode)
        params = self._publish(session, slab, transport, granted)
        if self.planes.may_map(transport):
            self.catalog.insert_holder(HolderRow(slab.id, session.id, transport, granted))
        self.slabs.hold(slab, session.id, transport, granted)
        if session.tenant == slab.tenant and self.leases.adopt(slab, session):
            self.catalog.set_owner(slab.id, session.id, None)
        return params

    def _publish(self, session: Session, slab: Slab, transport: str, mode: Mode) -> dict[str, Any]:
        assert session.served is not None
        slab.published.add(transport)
        return self.planes.publish(transport, slab, session.served, mode)

    def _unpublish(self, slab: Slab) -> None:
        self.generations.store(slab.slot, 0)
        self.planes.revoke(slab, slab.published)
        slab.published.clear()

    def close_off(self, slab: Slab) -> None:
        """Take the slab from everybody. Who maps it stays noted as a holder until it lets go."""
        self._unpublish(slab)
        for session_id, transport in list(slab.holders):
            if not self.planes.may_map(transport):
                self.slabs.let_go(slab, session_id, transport)

    def take_from(self, slab: Slab, sessions: set[int]) -> None:
        """Take a slab that lives on from some sessions. Those that may map it stay its holders until they let go."""
        for session_id, transport in list(slab.holders):
            if session_id not in sessions:
                continue
            if self.planes.may_map(transport):
                self.planes.withdraw(transport, slab, session_id)
            else:
                self.let_go(slab, session_id, transport)
        self.withdrawn(slab, sessions)
        self._tell(sessions, slab, REVOKED, None)

    # Slabs end ----------------------------------------------------------------------------------------

    def end_slab(self, slab: Slab, event: str, by: Session | None = None) -> Awaitable[object] | None:
        """End a slab: nobody finds or reaches it any more. Return what to wait for if its memory takes a while.

        The bytes stay charged until that is back, which nobody may hold any more.
        """
        for draft in self.slabs.drafts_of(slab):
            self.end_slab(draft, event)
        audience = {session_id for session_id, _ in slab.holders}
        if slab.owner is not None:
            audience.add(slab.owner)
        self.slabs.retire(slab)
        self.exclusives.release(slab)
        self.grants.end_slab(slab)
        self.close_off(slab)
        self.generations.release_slot(slab.slot)
        self._tell(audience, slab, event, by)
        return self.reclaiming.begin(slab)

    def let_go(self, slab: Slab, session_id: int, transport: str) -> None:
        """Take a slab, alive or reclaiming, from one session over one transport."""
        if not self.slabs.let_go(slab, session_id, transport):
            return
        self.planes.withdraw(transport, slab, session_id)
        if self.planes.may_map(transport):
            self.catalog.delete_holder(slab.id, session_id, transport)
        if slab.state == "reclaiming":
            self.reclaiming.look(slab)

    def _tell(self, audience: set[int], slab: Slab, event: str, by: Session | None) -> None:
        known_as = slab.draft_of if event == REPLACED else slab.id
        for session_id in audience:
            session = self.sessions.get(session_id)
            if session is not None and session is not by and session.channel is not None:
                session.channel.send(encode_event(event, id=known_as, generation=slab.generation))

    # Sessions -----------------------------------------------------------------------------------------

    def open_session(
        self, tenant: str, channel: Channel, limit: int, pid: int | None = None, host: str = ""
    ) -> Session:
        """Begin a session and record it, so that a restarted server can resume it."""
        number = self.catalog.next_number("next_session")
        word = self.generations.sessions.begin(number)
        try:
            session = self.sessions.open(number, tenant, channel, limit, word)
        except BaseException:
            self.generations.sessions.end(word)
            raise
        session.pid, session.host = pid, host
        try:
            self.catalog.insert_session(SessionRow(session.id, tenant, session.secret_hash, pid, host))
        except BaseException:
            session.channel = None
            self.sessions.end(session, SessionEvent.STOPPED)
            raise
        return session

    def _session_ended(self, session: Session, event: SessionEvent) -> None:
        # First of all: from here on its client stores nothing to what others have, or will have.
        self.generations.sessions.end(session.word)
        quiet = event in (SessionEvent.GOODBYE, SessionEvent.STOPPED)
        (log.debug if quiet else log.info)("session ended", session=session.id, reason=event.value)
        until_done(partial(self._clear_up, session, event))

    def _clear_up(self, session: Session, event: SessionEvent) -> None:
        with self.catalog.together():
            self._let_go_of_unmapped(session, event)
            ending: list[Slab] = []
            for slab in self.slabs.owned_by(session.id):
                if slab.ttl is None:
                    ending.append(slab)
                else:
                    self.catalog.set_owner(slab.id, None, self.leases.orphan(slab, session))
            self.planes.end_session(session.id)
            self.exclusives.end_session(session.id)
            if self.slabs.held_by(session.id):
                self.quarantine.begin(session.id, session.pid, session.host)
            else:
                self.catalog.delete_session(session.id)
        until_done(partial(self._end_some, ending))
        self.reclaiming.look_again(session.tenant)

    def quarantined(self, *, by_host: bool) -> list[Quarantined]:
        """Return what ended sessions may still have mapped, by host or in all."""
        rows = self.quarantine.all()
        if not by_host:
            return [_quarantined("", len(rows), self._held_by_any([row.session for row in rows]))] if rows else []
        found: list[Quarantined] = []
        for host, rows in self.quarantine.hosts().items():
            slabs = self._held_by_any([row.session for row in rows])
            found.append(_quarantined(host, len(rows), slabs))
        return found

    def release_host(self, host: str) -> Quarantined:
        """Take the operator's word for *host*; return what has come back. Raises as :class:`Quarantine` does."""
        held = {row.session: self.slabs.held_by(row.session) for row in self.quarantine.all()}
        with self.catalog.together():
            sessions = self.quarantine.release_host(host)
        slabs = {slab.id: slab for session_id in sessions for slab in held[session_id]}
        back = [slab for slab in slabs.values() if slab.state == "gone"]
        return _quarantined(host, len(sessions), back)

    def _held_by_any(self, sessions: list[int]) -> list[Slab]:
        return list({slab.id: slab for session_id in sessions for slab in self.slabs.held_by(session_id)}.values())

    def _came_back(self, session_id: int) -> None:
        """Watch over an ended session no more that holds nothing, as is seen by itself."""
        if not self.slabs.held_by(session_id):
            self.quarantine.release(session_id)

    def _let_go_of_all(self, session_id: int) -> None:
        for slab in self.slabs.held_by(session_id):
            for holder, transport in list(slab.holders):
                if holder == session_id:
                    self.let_go(slab, session_id, transport)

    def _let_go_of_unmapped(self, session: Session, event: SessionEvent) -> None:
        """Let go of all but what the client's process may still have mapped: no Detach came for that."""
        for slab in self.slabs.held_by(session.id):
            for holder, transport in list(slab.holders):
                if holder != session.id:
                    continue
                if self._stays_mapped(session, event, slab, transport):
                    self.planes.withdraw(transport, slab, session.id)
                else:
                    self.let_go(slab, session.id, transport)

    def _stays_mapped(self, session: Session, event: SessionEvent, slab: Slab, transport: str) -> bool:
        if event is SessionEvent.DIED or not self.planes.may_map(transport):
            return False
        if self.arena.reuses_memory:
            return True
        # A file's pages are nobody else's. Who holds it is seen, or else the word of a session without a process to
        # watch has to do.
        if session.pid is None or event is SessionEvent.STOPPED:
            return False
        return event is not SessionEvent.GOODBYE or _is_named(slab, session.mapped)

    def _end_some(self, slabs: list[Slab]) -> None:
        with self.catalog.together():
            for slab in slabs[:ENDS_IN_ONE_GO]:
                if slab.state == "live":
                    self.end_slab(slab, REVOKED)
        if len(slabs) > ENDS_IN_ONE_GO:
            asyncio.get_running_loop().call_soon(until_done, partial(self._end_some, slabs[ENDS_IN_ONE_GO:]))

    def _lease_ended(self, slab: Slab) -> None:
        log.info("lease ended", slab=slab.id, name=slab.name)
        self.end_slab(slab, EXPIRED)

    # The end ------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """End every session and wait for the work in threads; leased and persistent slabs stay.

        So does what is held of slabs that ended before. Of those that end now the kernel takes care: no next server may
        ever come.
        """
        self.reclaiming.closing = True
        sessions, mapped = self.sessions.all(), [slab for slab in self.slabs.all() if self._may_be_mapped(slab)]
        for session in sessions:
            self.sessions.end(session, SessionEvent.STOPPED)
        for slab in self.slabs.all():
            if slab.lease == "session":
                self.end_slab(slab, REVOKED)
        await self.finish_work()
        leave_sessions(self.catalog, sessions)
        for slab in mapped:
            if slab.state == "live":
                renumber(self.catalog, self.generations, slab)
        self.reclaiming.report()

    def _may_be_mapped(self, slab: Slab) -> bool:
        return any(self.planes.may_map(transport) for _, transport in slab.holders)

    async def hand_over(self) -> None:
        """Finish what is under way, and leave every session to the next server."""
        for session in self.sessions.all():
            session.watch_process(None)
        await self.finish_work()

    async def finish_work(self) -> None:
        """Wait for the work in threads; a slab that nobody was told of goes."""
        await self.work.finish()
        for slab in self.slabs.being_made():
            self.arena.remove(slab.memory_id)

    def close_memory(self) -> None:
        """Unmap every slab, once no data plane can reach them any more, and watch no process any more."""
        self.quarantine.close()
        for slab in self.slabs.all():
            slab.close_memory()


def _granted(session: Session, slab: Slab, transport: str, mode: Mode) -> Mode:
    """Return what one session is granted: a second attach never narrows the first."""
    if slab.granted == "r":
        return "r"
    return "rw" if slab.holders.get((session.id, transport)) == "rw" else mode


def _quarantined(host: str, sessions: int, slabs: list[Slab]) -> Quarantined:
    return Quarantined(host=host, sessions=sessions, slabs=len(slabs), nbytes=sum(slab.charged for slab in slabs))


def _row_of(slab: Slab) -> SlabRow:
    lease = "ttl" if slab.ttl is not None else str(slab.lease)
    return SlabRow(
        id=slab.id,
        generation=slab.generation,
        slot=slab.slot,
        nbytes=slab.nbytes,
        tenant=slab.tenant,
        name=slab.name,
        lease=lease,
        ttl=slab.ttl,
        owner=slab.owner,
        deadline=None,
        atomics=slab.atomics,
        extent=slab.offset or None,
        draft_of=slab.draft_of,
    )


def _is_named(slab: Slab, mapped: frozenset[tuple[int, int]]) -> bool:
    """Tell whether a client names the slab's memory; that of a draft in the place of a slab it knows as the slab's."""
    return (slab.id, slab.generation) in mapped or (slab.draft_of, slab.generation) in mapped
