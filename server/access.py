"""Who may do what with which slab: its own tenant everything, others what they were granted. Not thread-safe.

A slab that one may not see looks like one that does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from farpool.protocol.errors import FarpoolError, InvalidArgument, PermissionDenied, SlabNotFound, StaleSlab
from farpool.protocol.grant_messages import GrantInfo
from farpool.protocol.message_base import Done
from farpool.protocol.units import parse_lease, validate_name
from farpool.server.grants import EVERY_MEMORY, NO_MEMORY, Grant
from farpool.server.lifecycle import REVOKED, Lifecycle
from farpool.server.sessions import Session
from farpool.server.slabs import Slab
from farpool.server.tenants import Tenants
from farpool.transports.contract import Mode

__all__ = ["Access"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.access")

RETRY_SECONDS: Final = 2.0
"""Rest before it is tried again to move a slab that a revoked tenant may still have mapped; doubled each time."""

LONGEST_RETRY_SECONDS: Final = 30.0


class Access:
    """The rights of every session of one server. ``move`` gives a slab memory that nobody has mapped yet."""

    def __init__(self, life: Lifecycle, tenants: Tenants, move: Callable[[Slab], Awaitable[None]]) -> None:
        self._life = life
        self._tenants = tenants
        self._move = move
        self._waiting: set[Grant] = set()
        """Closed grants for which there will be another try."""
        life.grants.expired = self._expire
        for grant in life.grants.closed():
            self._close(grant)  # an earlier server may have died between its first word of it and its last
            self._try_later(grant, 0.0)

    # Finding ------------------------------------------------------------------------------------------

    def named(self, session: Session, name: str, owner: str | None) -> Slab:
        """Return the slab of that name: the tenant's own, or one that it was granted.

        Raises:
            SlabNotFound: there is none that the session may see.
            InvalidArgument: several tenants have granted one of that name.
        """
        slabs = self._life.slabs
        validate_name(name)
        granted = {
            grant.slab.tenant: grant.slab
            for grant in self._life.grants.of_tenant(session.tenant)
            if grant.slab.name == name and self._life.grants.find(session.tenant, grant.slab.id) is grant
        }
        if owner not in (None, session.tenant):
            if owner in granted:
                return granted[owner]
            raise SlabNotFound(f'the tenant "{owner:.64}" has granted you no slab named "{name}"', name=name)
        try:
            return slabs.get_named(session.tenant, name)
        except SlabNotFound:
            if owner is not None or not granted:
                raise
        if len(granted) > 1:
            raise InvalidArgument(
                f'slabs named "{name}" were granted by {", ".join(sorted(granted)[:8])}; say whose with tenant=',
                name=name,
            )
        return next(iter(granted.values()))

    def numbered(self, session: Session, slab_id: int, owner: str | None) -> Slab:
        """Return the slab of that id, the tenant's own or granted; raise ``SlabNotFound``."""
        slab = self._life.slabs.get(self._owner(session, slab_id), slab_id)
        if owner not in (None, slab.tenant):
            raise SlabNotFound(f'the tenant "{owner:.64}" has granted you no slab {slab_id}', id=slab_id)
        return slab

    def of_life(self, session: Session, slab_id: int, generation: int) -> Slab:
        """Return this very life of a slab, the tenant's own or granted; raise ``StaleSlab``."""
        return self._life.slabs.get_life(self._owner(session, slab_id), slab_id, generation)

    def own(self, session: Session, slab_id: int, generation: int, what: str) -> Slab:
        """Return a slab for what its own tenant alone may do; raise ``PermissionDenied`` to others who see it."""
        slab = self.of_life(session, slab_id, generation)
        if slab.tenant != session.tenant:
            raise PermissionDenied(f'{slab.label} is the tenant "{slab.tenant}"\'s, which alone may {what} it')
        return slab

    def check(self, session: Session, slab: Slab, wanted: Mode, *, alone: bool = False) -> None:
        """See to it that a session may have a slab in that mode, now.

        Raises:
            PermissionDenied: it was granted less.
            StaleSlab: it was granted nothing, or not any more.
        """
        if slab.tenant == session.tenant:
            return
        grant = self._life.grants.find(session.tenant, slab.id)
        if grant is None:
            raise StaleSlab(
                f"slab {slab.id} of generation {slab.life} was freed, revoked or has expired; open it again",
                id=slab.id,
            )
        if grant.mode == "r" and (wanted == "rw" or alone):
            way = "for oneself" if alone else 'in mode "rw"'
            raise PermissionDenied(
                f'{slab.label} was granted to the tenant "{session.tenant}" for reading only, and cannot be had {way}; '
                'open it with mode="r", or have it granted in mode "rw"',
                id=slab.id,
            )

    def note(self, session: Session, slab: Slab, transport: str, *, draft: bool = False) -> None:
        """Remember that a session may map what a slab has now, or will have once its draft is committed."""
        if slab.draft_of is not None:
            slab, draft = self._life.slabs.base_of(slab), True
        if slab.tenant != session.tenant and self._life.planes.may_map(transport):
            grant = self._life.grants.find(session.tenant, slab.id)
            if grant is not None:
                grant.seen = EVERY_MEMORY if draft or grant.seen == EVERY_MEMORY else slab.generation

    def granted(self, session: Session) -> list[Slab]:
        """Return the slabs that the session's tenant was granted."""
        grants = self._life.grants
        return [grant.slab for grant in grants.of_tenant(session.tenant) if grants.find(grant.tenant, grant.slab.id)]

    def _owner(self, session: Session, slab_id: int) -> str:
        grant = self._life.grants.find(session.tenant, slab_id)
        return session.tenant if grant is None else grant.slab.tenant

    # Granting -----------------------------------------------------------------------------------------

    def grant(self, slab: Slab, tenant: str, mode: Mode, seconds: float | None) -> Done | Awaitable[Done]:
        """Let a tenant attach a slab; what it may do less than before is taken from its sessions at once."""
        if slab.draft_of is not None:
            raise InvalidArgument("a draft cannot be granted; grant its slab")
        if tenant == slab.tenant:
            raise InvalidArgument(f'{slab.label} is the tenant "{tenant}"\'s own; name another tenant')
        if self._tenants.find(tenant) is None:
            raise InvalidArgument(f"there is no tenant {tenant!r:.80}; an administrator makes it: farpool tenant add")
        if seconds is not None:
            seconds = float(parse_lease(seconds))
        before = next((each for each in self._life.grants.of_slab(slab) if each.tenant == tenant), None)
        if before is not None and before.mode != "r" and (before.mode is None or mode == "r"):
            return self._grant_anew(slab, before, mode, seconds)
        self._life.grants.set(slab, tenant, mode, seconds)
        return Done()

    async def _grant_anew(self, slab: Slab, before: Grant, mode: Mode, seconds: float | None) -> Done:
        tenant = self._tenants.find(before.tenant)
        await self._take_back(before)
        if slab.state != "live":
            raise StaleSlab(f"{slab.label} has ended meanwhile", id=slab.id)
        if self._tenants.find(before.tenant) is not tenant:
            raise InvalidArgument(
                f'the tenant "{before.tenant}" was removed meanwhile; grant it anew if there is another'
            )
        self._life.grants.set(slab, before.tenant, mode, seconds)
        return Done()

    def revoke(self, slab: Slab, tenant: str) -> Done | Awaitable[Done]:
        """Take a slab from a tenant; one that has no grant of it has none afterwards either."""
        grant = next((each for each in self._life.grants.of_slab(slab) if each.tenant == tenant), None)
        return Done() if grant is None else self._take_back(grant)

    def revoke_all(self, tenant: str) -> None:
        """Take all that was granted to a tenant, which is being removed."""
        for grant in self._life.grants.of_tenant(tenant):
            self._close(grant)
            self._try_later(grant, 0.0)

    def of_slab(self, slab: Slab) -> list[GrantInfo]:
        """Return what a slab's owner is told of its grants."""
        grants = self._life.grants
        return [
            GrantInfo(tenant=grant.tenant, mode=grant.mode, expires_in=grants.seconds_left(grant))
            for grant in grants.of_slab(slab)
            if grant.mode is not None and grants.find(grant.tenant, slab.id) is grant
        ]

    # Taking back --------------------------------------------------------------------------------------

    def _close(self, grant: Grant) -> None:
        """End a grant, and take the slab from its tenant's sessions as far as the server can at once."""
        life, slab = self._life, grant.slab
        life.grants.close(grant)
        # Also if it is granted anew before that draft is made: a copy would have bytes of the time in between.
        why = StaleSlab(f"the grant of {slab.label} ended while a draft of it was being made", id=slab.id)
        life.making.call_off(grant.tenant, why, slab.id)
        sessions = {session.id for session in life.sessions.all() if session.tenant == grant.tenant}
        for draft in life.slabs.drafts_of(slab):
            if draft.tenant == grant.tenant:
                life.end_slab(draft, REVOKED)
        if slab.exclusive in sessions:
            life.exclusives.release(slab)
        life.take_from(slab, sessions)

    async def _take_back(self, grant: Grant) -> Done:
        self._close(grant)
        try:
            await self._make_safe(grant)
        except Exception as error:
            if grant.slab.state != "live":
                return Done()
            self._try_later(grant, RETRY_SECONDS)
            kind, details = (type(error), error.details) if isinstance(error, FarpoolError) else (FarpoolError, {})
            raise kind(
                f'the grant has ended, but sessions of the tenant "{grant.tenant}" may still see what they have mapped '
                f"of {grant.slab.label}, which cannot move to other memory yet: {error}",
                **details,
            ) from error
        return Done()

    async def _make_safe(self, grant: Grant) -> None:
        """See to it that the slab is not in memory which the tenant's processes can have mapped."""
        while grant.slab.state == "live" and grant.has_seen:
            generation = grant.slab.generation
            await self._move(grant.slab)
            if grant.slab.generation != generation:  # else it waited for somebody else's move, which failed
                grant.seen = NO_MEMORY
        if grant.mode is None:
            self._life.grants.forget(grant)

    def _expire(self, grant: Grant) -> None:
        log.info("grant ended", slab=grant.slab.id, name=grant.slab.name, tenant=grant.tenant)
        self._close(grant)
        self._try_later(grant, 0.0)

    def _try_later(self, grant: Grant, seconds: float) -> None:
        if grant not in self._waiting:
            self._waiting.add(grant)
            asyncio.get_running_loop().call_later(seconds, self._try_again, grant, seconds)

    def _try_again(self, grant: Grant, waited: float) -> None:
        self._waiting.discard(grant)
        if grant.mode is not None or grant.slab.state != "live":
            return
        task = asyncio.get_running_loop().create_task(self._make_safe(grant))

        def ended(done: asyncio.Task[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None and grant.slab.state == "live":
                rest = min(max(2 * waited, RETRY_SECONDS), LONGEST_RETRY_SECONDS)
                about = {"slab": grant.slab.id, "tenant": grant.tenant, "again_in": rest}
                log.warning("revoked slab not moved yet", **about, reason=str(error))
                self._try_later(grant, rest)

        self._life.work.wait_for(task)
        task.add_done_callback(ended)
