"""How a slab's memory is replaced: by a draft that its writer commits, or by a copy that old holders never mapped.

A draft is a slab of its own that nobody else finds. To commit it is one transaction of the catalog, which says what
memory is whose from then on; readers of the old memory are sent away before anyone is let in to the new. The draft,
which has the old memory then, ends as any slab does: its bytes stay charged until all who mapped it have let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from farpool.protocol.checksums import block_of, blocks_in, digest_of, unpack_known
from farpool.protocol.commit_messages import MOST_DRAFTS, Commit, DraftEnd, Reserve
from farpool.protocol.errors import (
    CorruptData,
    InvalidArgument,
    PermissionDenied,
    PoolFull,
    RegionInUse,
    SlabBusy,
    StaleSlab,
)
from farpool.server.catalog import Change
from farpool.server.lifecycle import REPLACED, REVOKED, Lifecycle
from farpool.server.long_work import LONG_BYTES
from farpool.server.sessions import Session
from farpool.server.slab_bytes import Copier, summer
from farpool.server.slabs import Checksums, Slab

__all__ = ["Commits"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.commits")

TAKE_MEMORY: Final = (
    "UPDATE slabs SET memory = ?, generation = ?, slot = ?, extent = ?, life = ?, commits = ?, block = ?, checksums = ?"
    " WHERE id = ?"
)
TAKE_OLD_MEMORY: Final = (
    "UPDATE slabs SET memory = ?, generation = ?, slot = ?, extent = ?, reclaiming = 1, owner = NULL WHERE id = ?"
)


class Replacement(NamedTuple):
    """One slab, and the draft whose memory it gets."""

    slab: Slab
    draft: Slab
    checksums: Checksums
    commits: int


class Commits:
    """Reserves, commits and moves. ``may_write`` raises where a session may not replace a slab's bytes.

    Not thread-safe; copies and checksums are made in the executor's threads, and rights are looked at after each.
    """

    def __init__(self, life: Lifecycle, may_write: Callable[[Session, Slab], None]) -> None:
        self._life = life
        self._may_write = may_write

    # Reserving ----------------------------------------------------------------------------------------

    def prepare(self, session: Session, slab: Slab, request: Reserve) -> tuple[Slab, bool]:
        """Reserve a draft of *slab*, made already unless that takes a while; return it, and whether it is made.

        Raises:
            SlabBusy: another session has the slab for itself.
            PoolFull: there is no room for a second copy.
        """
        life = self._life
        life.exclusives.check(slab, session)
        life.planes.check(request.transport)
        draft = life.making.prepare(session, slab.nbytes, None, "session", slab.atomics, draft_of=slab.id)
        if request.copy or draft.charged > LONG_BYTES:
            return draft, False
        life.making.make(draft)
        return draft, True

    async def make(self, session: Session, slab: Slab, draft: Slab, *, copy: bool) -> None:
        """Make the memory of a draft in a thread, and fill it with the slab's bytes if *copy*."""
        while slab.moving is not None:
            await slab.moving.wait()
        await self._make(session, slab, draft, copy=copy, ended="while a draft of it was being made")

    async def _make(self, session: Session | None, slab: Slab, draft: Slab, *, copy: bool, ended: str) -> None:
        life = self._life
        with life.making.or_abandon(draft):
            self.check_base(session, slab, draft, ended)
            copier = Copier(life.arena, slab.memory_id, draft.memory_id, slab.nbytes) if copy else None
        await life.making.make_long(session, draft, copier)
        with life.making.or_abandon(draft):
            self.check_base(session, slab, draft, ended)

    def check_base(self, session: Session | None, slab: Slab, draft: Slab, ended: str = "meanwhile") -> None:
        """Look whether a draft of the slab may still be made, after other requests had their turn."""
        if slab.state != "live":
            raise StaleSlab(f"{slab.label} has ended {ended}", id=slab.id)
        if draft.called_off is not None:
            raise draft.called_off
        if session is not None:
            self._may_write(session, slab)

    # Committing ---------------------------------------------------------------------------------------

    async def commit(self, session: Session, request: Commit) -> list[Slab]:
        """Let drafts take the place of their slabs' memory, all or none; return the slabs.

        Raises:
            StaleSlab: a draft or its slab has ended; nothing was committed.
            CorruptData: a draft's bytes are not those that its writer wrote; nothing was committed, and it has ended.
            PoolFull: the catalog has no room; nothing was committed, and it can be tried again.
        """
        pairs = self._pairs(session, request.drafts)
        moving = asyncio.Event()
        for _, draft in pairs:
            draft.moving = moving
        try:
            for (_, draft), end in zip(pairs, request.drafts, strict=True):
                self._close_draft(session, draft, end)
            sums = [await self._sums(draft, end) for (_, draft), end in zip(pairs, request.drafts, strict=True)]
            for slab, _ in pairs:
                while slab.moving is not None:
                    await slab.moving.wait()
            self._check(session, pairs)
            self.replace(
                [
                    Replacement(slab, draft, words, slab.commits + 1)
                    for (slab, draft), words in zip(pairs, sums, strict=True)
                ]
            )
        finally:
            for _, draft in pairs:
                draft.moving = None
                if draft.state == "live":  # nothing was committed: it may be attached again
                    self._life.generations.store(draft.slot, draft.generation)
            moving.set()
        return [slab for slab, _ in pairs]

    def _pairs(self, session: Session, drafts: Sequence[DraftEnd]) -> list[tuple[Slab, Slab]]:
        slabs = self._life.slabs
        if not 0 < len(drafts) <= MOST_DRAFTS:
            raise InvalidArgument(f"a commit publishes 1 to {MOST_DRAFTS} drafts together, not {len(drafts)}")
        pairs: list[tuple[Slab, Slab]] = []
        for end in drafts:
            draft = slabs.get_life(session.tenant, end.id, end.generation)
            if draft.draft_of is None or draft.owner != session.id:
                raise InvalidArgument(f"{draft.label} is no draft of this session; commit what reserve has returned")
            if draft.moving is not None:
                raise SlabBusy(f"draft {draft.id} is being committed already")
            pairs.append((slabs.base_of(draft), draft))
        if len({slab.id for slab, _ in pairs}) < len(pairs):
            raise InvalidArgument("two drafts of one slab cannot be committed together; commit one after the other")
        for slab, _ in pairs:
            self._may_write(session, slab)
            self._life.exclusives.check(slab, session)
        return pairs

    def _close_draft(self, session: Session, draft: Slab, end: DraftEnd) -> None:
        """See to it that nobody writes to the draft any more."""
        if end.detached:
            self._life.let_go(draft, session.id, end.detached)
        mapped = {transport for _, transport in draft.holders if self._life.planes.may_map(transport)}
        if mapped:
            raise RegionInUse(f"draft {draft.id} is still attached over {', '.join(mapped)}; let go of it to commit it")
        self._life.close_off(draft)

    async def _sums(self, draft: Slab, end: DraftEnd) -> Checksums:
        if not end.checksum:
            return Checksums()
        block = block_of(draft.nbytes)
        work = summer(self._life.arena, draft.memory_id, draft.nbytes, block)
        words = await self._life.work.in_thread(work)
        if digest_of(words, unpack_known(end.known, blocks_in(draft.nbytes, block))) != end.digest:
            self._life.end_slab(draft, REVOKED)
            raise CorruptData(
                f"draft {draft.id} does not hold what its writer has written: their checksums differ; nothing was "
                "committed: reserve and write again",
                id=draft.id,
            )
        return Checksums(block, words)

    def _check(self, session: Session, pairs: list[tuple[Slab, Slab]]) -> None:
        """Look again, after other requests had their turn."""
        if not session.alive:
            raise PermissionDenied(f"session {session.id} ended before its commit was done; nothing was committed")
        for slab, draft in pairs:
            if slab.state != "live" or draft.state != "live":
                raise StaleSlab(f"{slab.label} or its draft has ended; nothing was committed", id=slab.id)
            self._may_write(session, slab)
            self._life.exclusives.check(slab, session)

    # Replacing ----------------------------------------------------------------------------------------

    def replace(self, replacements: Sequence[Replacement]) -> None:
        """Give slabs the memory of their drafts, all or none. Nobody may have a draft attached."""
        life = self._life
        words = life.generations
        before = [draft.generation for _, draft, _, _ in replacements]
        for _, draft, _, _ in replacements:
            draft.generation = life.catalog.next_number("next_generation")
            # Before the catalog says so: a device's slab whose word is another's counts as ended.
            words.store(draft.slot, draft.generation)
        try:
            life.catalog.write(*(change for replacement in replacements for change in _changes(replacement)))
        except BaseException:
            for (_, draft, _, _), generation in zip(replacements, before, strict=True):
                words.store(draft.slot, 0)
                draft.generation = generation
            raise
        # It is done. Whoever sees new bytes of one slab must see no old ones of another: all the old end first.
        for slab, _, _, _ in replacements:
            words.store(slab.slot, 0)
        for slab, _, _, _ in replacements:
            life.planes.revoke(slab, slab.published)
            slab.published.clear()
        for replacement in replacements:
            self._exchange(*replacement)

    def _exchange(self, slab: Slab, draft: Slab, checksums: Checksums, commits: int) -> None:
        life = self._life
        mapped = [holder for holder in slab.holders if life.planes.may_map(holder[1])]
        slab.exchange_memory(draft)
        slab.checksums, slab.commits = checksums, commits
        for (session_id, transport), mode in list(slab.holders.items()):
            life.slabs.let_go(slab, session_id, transport)
            if (session_id, transport) in mapped:
                life.slabs.hold(draft, session_id, transport, mode)
        life.end_slab(draft, REPLACED)

    # Moving -------------------------------------------------------------------------------------------

    async def move(self, slab: Slab) -> None:
        """Copy a slab to memory that nobody has mapped yet; handles of it follow, and late stores change nothing.

        Raises:
            PoolFull: there is no room for a second copy; all is as it was, and nobody has noticed.
            StaleSlab: the slab has ended meanwhile.
        """
        if slab.moving is not None:
            await slab.moving.wait()
            return
        life = self._life
        slab.moving = asyncio.Event()
        try:
            draft = await self._prepare_copy(slab)
            # All that takes room comes first: who has the slab attached is sent away only for a move that can be.
            await self._make(None, slab, draft, copy=False, ended="meanwhile")
            life.record_copy(draft)
            try:
                life.close_off(slab)
                await self._fill(slab, draft)
            except BaseException:
                life.catalog.delete_slab(draft.id, held=False)
                raise
            life.slabs.admit(draft)
            try:
                self.replace([Replacement(slab, draft, slab.checksums, slab.commits)])
            except BaseException:
                life.end_slab(draft, REVOKED)
                raise
        finally:
            if slab.state == "live":
                life.generations.store(slab.slot, slab.generation)
            moved, slab.moving = slab.moving, None
            moved.set()
        log.info("slab moved", slab=slab.id, name=slab.name, nbytes=slab.nbytes)

    async def _fill(self, slab: Slab, draft: Slab) -> None:
        life = self._life
        with life.making.or_abandon(draft):
            copier = Copier(life.arena, slab.memory_id, draft.memory_id, slab.nbytes)
        await life.making.work_on(None, draft, copier.copy)
        with life.making.or_abandon(draft):
            self.check_base(None, slab, draft)

    async def _prepare_copy(self, slab: Slab) -> Slab:
        making, reclaiming = self._life.making, self._life.reclaiming
        try:
            return making.prepare_copy(slab)
        except PoolFull:
            looking = reclaiming.look_again(slab.tenant)
            if looking is not None:
                await looking
        if slab.state != "live":
            raise StaleSlab(f"{slab.label} has ended meanwhile", id=slab.id)
        return making.prepare_copy(slab)


def _changes(replacement: Replacement) -> list[Change]:
    slab, draft, checksums, commits = replacement
    recorded = (checksums.block, checksums.words) if checksums.block else (None, None)
    new = (draft.memory_id, draft.generation, draft.slot, draft.offset or None)
    old = (slab.memory_id, slab.generation, slab.slot, slab.offset or None)
    return [
        (TAKE_MEMORY, (*new, slab.life, commits, *recorded, slab.id)),
        ("DELETE FROM holders WHERE slab = ?", (draft.id,)),
        ("UPDATE holders SET slab = ? WHERE slab = ?", (draft.id, slab.id)),
        (TAKE_OLD_MEMORY, (*old, draft.id)),
    ]
