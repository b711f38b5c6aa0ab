"""How a slab comes to be: bytes, name, numbers and slot are reserved, then its memory is made, or all is undone.

Long slabs are made in a thread, which waits for the kernel. What is made lives once the lifecycle admits it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from functools import partial

from farpool.protocol.errors import FarpoolError, PermissionDenied
from farpool.protocol.units import Lease
from farpool.server.arena import Arena
from farpool.server.catalog import Catalog
from farpool.server.generations import Generations
from farpool.server.long_work import LongWork
from farpool.server.quotas import NO_QUOTA, Quota
from farpool.server.sessions import Session
from farpool.server.slab_bytes import Copier
from farpool.server.slabs import Slab, SlabTable

__all__ = ["Making"]


class Making:
    """Makes the slabs of one server. Not thread-safe."""

    def __init__(
        self, arena: Arena, catalog: Catalog, generations: Generations, slabs: SlabTable, work: LongWork
    ) -> None:
        self._arena = arena
        self._catalog = catalog
        self._generations = generations
        self._slabs = slabs
        self._work = work
        self.quota_of: Callable[[str], Quota] = lambda _: NO_QUOTA
        """What a tenant may have at most."""

    def prepare(
        self,
        session: Session,
        nbytes: int,
        name: str | None,
        lease: Lease,
        atomics: str = "cpu",
        draft_of: int | None = None,
    ) -> Slab:
        """Reserve bytes, name, numbers and slot of a new slab; raise ``PoolFull``, ``QuotaExceeded``, ``NameTaken``."""
        tenant = session.tenant
        self._slabs.account(tenant).check(tenant, self.quota_of(tenant), self._arena.charge(nbytes))
        owner = None if lease == "persistent" else session.id
        return self._prepare(session.tenant, owner, nbytes, name, lease, atomics, draft_of)

    def prepare_copy(self, slab: Slab) -> Slab:
        """Reserve what :meth:`prepare` does for the memory that a slab is to move to; a restart forgets it."""
        return self._prepare(slab.tenant, None, slab.nbytes, None, "session", slab.atomics, slab.id)

    def _prepare(
        self,
        tenant: str,
        owner: int | None,
        nbytes: int,
        name: str | None,
        lease: Lease,
        atomics: str,
        draft_of: int | None,
    ) -> Slab:
        self._slabs.check_room(tenant, name, self._arena.charge(nbytes))
        slab = Slab(
            self._arena,
            self._slabs.mappings,
            id=self._catalog.next_number("next_slab"),
            generation=self._catalog.next_number("next_generation"),
            slot=self._generations.take_slot(),
            nbytes=nbytes,
            tenant=tenant,
            name=name,
            lease=lease,
            owner=owner,
            atomics=atomics,
            draft_of=draft_of,
        )
        self._slabs.reserve(slab)
        return slab

    def make(self, slab: Slab) -> None:
        """Make the memory of a prepared slab; undo the preparation if that fails."""
        with self.or_abandon(slab):
            self._arena.create(slab.memory_id, slab.nbytes)

    async def make_long(self, session: Session | None, slab: Slab, copier: Copier | None = None) -> None:
        """Do the same in a thread, and then copy.

        Raises:
            PermissionDenied: the session has ended meanwhile.
            FarpoolError: what the slab was called off with meanwhile.
        """
        await self.work_on(session, slab, partial(_make, self._arena, slab.memory_id, slab.nbytes, copier))

    async def work_on(self, session: Session | None, slab: Slab, work: Callable[[], None]) -> None:
        """Do in a thread what a slab needs that does not live yet; abandon it, and raise, as :meth:`make_long` does."""
        working = self._work.in_thread(work)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            working.add_done_callback(lambda _: self.abandon(slab))
            raise
        except BaseException:
            self.abandon(slab)
            raise
        with self.or_abandon(slab):
            self.check(session, slab)

    def check(self, session: Session | None, slab: Slab) -> None:
        """Raise why a slab that was being made must not live: its session has ended, or it was called off."""
        if session is not None and not session.alive:
            raise PermissionDenied(f"session {session.id} ended while its slab was being made")
        if slab.called_off is not None:
            raise slab.called_off

    def call_off(self, tenant: str, why: FarpoolError, draft_of: int | None = None) -> None:
        """Let nothing live that is being made for a tenant, or only no draft of one slab; it is abandoned when made."""
        for slab in self._slabs.being_made():
            if slab.tenant == tenant and draft_of in (None, slab.draft_of):
                slab.called_off = why

    @contextlib.contextmanager
    def or_abandon(self, slab: Slab) -> Generator[None]:
        """Abandon a slab that does not live yet if what is done inside fails."""
        try:
            yield
        except BaseException:
            self.abandon(slab)
            raise

    def abandon(self, slab: Slab) -> None:
        """Undo :meth:`prepare`, and what was made since."""
        slab.close_memory()
        with contextlib.suppress(OSError):
            self._arena.remove(slab.memory_id)
            self._arena.reclaim(slab.memory_id)
        self._generations.release_slot(slab.slot)
        self._slabs.abandon(slab)


def _make(arena: Arena, memory_id: int, nbytes: int, copier: Copier | None) -> None:
    try:
        arena.create(memory_id, nbytes)
    except BaseException:
        if copier is not None:
            copier.close()
        raise
    if copier is not None:
        copier.copy()
