"""Start-up: make catalog, arena and generation words agree, whatever the last server was doing when it ended.

The catalog says what lives; a slab whose memory is gone is dropped from it, memory without a row is removed,
and each generation word is written anew.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import structlog

from farpool.protocol.errors import FarpoolError
from farpool.protocol.units import Lease
from farpool.server.arena import Arena
from farpool.server.catalog import Catalog, HolderRow, SessionRow, SlabRow
from farpool.server.deadlines import Clock, boot_id
from farpool.server.generations import Generations
from farpool.server.sessions import SessionTable
from farpool.server.slabs import Checksums, Slab, SlabTable

__all__ = ["Restored", "reconcile"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.reconcile")


@dataclass(frozen=True, slots=True)
class Restored:
    """What a start found, in counts."""

    slabs: int
    sessions: int
    reclaiming: int
    dropped: int
    """Slabs of the catalog whose memory was gone, or whose owner was."""
    orphans: int
    """Slab files that no row knew."""


def reconcile(
    catalog: Catalog,
    arena: Arena,
    generations: Generations,
    slabs: SlabTable,
    sessions: SessionTable,
    clock: Clock,
) -> Restored:
    """Bring back what survived, and remove what nobody owns; fills *slabs* and *sessions*."""
    same_boot = catalog.meta_text("boot_id") == boot_id()
    catalog.set_meta("boot_id", boot_id())
    arena.recover(catalog.slabs(), generations)
    known = {row.id: row for row in catalog.sessions()}
    holders = _holders(catalog, known, arena, same_boot=same_boot)
    files = arena.slabs()
    live, reclaiming, dropped = _sort_rows(catalog, arena, holders, files, known)
    orphans = _remove_unknown(arena, live, reclaiming)
    # Before any word goes: an older copy of the catalog, as a power loss leaves it, does not know all that were given.
    generation, number = generations.largest()
    catalog.skip_past("next_generation", generation)
    catalog.skip_past("next_session", number)
    generations.restore({row.slot: row.generation for row in live})
    words = generations.restore_sessions(known.keys())
    for session in known.values():
        restored = sessions.restore(session.id, session.tenant, session.secret_hash)
        restored.pid, restored.host = session.pid, session.host
        restored.word = words.get(session.id) or _begin_word(generations, session.id)
    for row in live:
        slab = _slab_of(row, arena, slabs, row.owner if row.owner in known else None)
        slab.exclusive = row.exclusive if row.exclusive in known else None
        if row.ttl is not None and slab.owner is None:
            # A deadline of another boot says nothing on this clock: the lease begins anew, and is not cut short.
            slab.deadline = row.deadline if same_boot and row.deadline is not None else clock() + row.ttl
        slabs.reserve(slab)
        slabs.admit(slab)
        _hold(slab, slabs, holders[row.id])
    for row in reclaiming:
        slab = _slab_of(row, arena, slabs, None)
        slab.state = "reclaiming"
        slabs.add_reclaiming(slab)
        _hold(slab, slabs, holders[row.id])
    return Restored(len(live), len(known), len(reclaiming), dropped, orphans)


def _begin_word(generations: Generations, session_id: int) -> int:
    """Give a session of the catalog a word that it lacks; without room for it return 0, and its slabs are kept."""
    try:
        return generations.sessions.begin(session_id)
    except FarpoolError as error:
        log.warning("session without a word: its client looks at slabs alone", session=session_id, reason=str(error))
        return 0


def _holders(
    catalog: Catalog, known: dict[int, SessionRow], arena: Arena, *, same_boot: bool
) -> dict[int, list[HolderRow]]:
    """Return by slab who may still have it mapped: nobody on this machine does after its restart."""
    pids = {row.id: row.pid for row in known.values()} | {row.session: row.pid for row in catalog.quarantine()}
    if not arena.reuses_memory and not same_boot:
        pids.clear()
    holders: dict[int, list[HolderRow]] = defaultdict(list)
    for holder in catalog.holders():
        if holder.session in pids and (same_boot or pids[holder.session] is None):
            holders[holder.slab].append(holder)
    return holders


def _sort_rows(
    catalog: Catalog,
    arena: Arena,
    holders: dict[int, list[HolderRow]],
    files: dict[int, int],
    known: dict[int, SessionRow],
) -> tuple[list[SlabRow], list[SlabRow], int]:
    live: list[SlabRow] = []
    reclaiming: list[SlabRow] = []
    dropped = 0
    lost = _lost(catalog.slabs(), files, known)
    with catalog.together():
        for row in catalog.slabs():
            if not row.reclaiming and row.id not in lost:
                live.append(row)
                continue
            dropped += not row.reclaiming
            if not _is_held(row, arena, holders[row.id]):
                catalog.delete_slab(row.id, held=True)
                continue
            if not row.reclaiming:  # it has ended, but not for those who hold it
                catalog.mark_reclaiming(row.id)
            reclaiming.append(replace(row, reclaiming=1, name=None, owner=None))
    return live, reclaiming, dropped


def _is_held(row: SlabRow, arena: Arena, holders: list[HolderRow]) -> bool:
    """Tell whether somebody may hold the memory of a slab that has ended; else it comes back."""
    if not arena.sees_holders and holders and (row.reclaiming or arena.reuses_memory):
        return True
    try:
        return not arena.reclaim(row.memory_id)
    except OSError as error:  # it is tried again
        log.error("slab file not removed", slab=row.id, error=str(error))
        return True


def _lost(rows: list[SlabRow], files: dict[int, int], known: dict[int, SessionRow]) -> set[int]:
    """Return the slabs that have ended, and with them their drafts."""
    lost = {row.id for row in rows if not row.reclaiming and not _survived(row, files, known)}
    ended = lost | {row.id for row in rows if row.reclaiming}
    return lost | {row.id for row in rows if row.draft_of in ended and not row.reclaiming}


def _survived(row: SlabRow, files: dict[int, int], known: dict[int, SessionRow]) -> bool:
    if files.get(row.memory_id, 0) < row.nbytes:
        log.info("slab forgotten", slab=row.id, name=row.name, reason="its memory is gone from the arena")
        return False
    return row.lease != "session" or row.owner in known


def _remove_unknown(arena: Arena, live: list[SlabRow], reclaiming: list[SlabRow]) -> int:
    files = arena.slabs()
    unknown = set(files) - {row.memory_id for row in (*live, *reclaiming)}
    for memory in unknown:
        arena.remove(memory)
        arena.reclaim(memory)
    if unknown:
        log.info("orphan slab files removed", count=len(unknown), nbytes=sum(files[memory] for memory in unknown))
    return len(unknown)


def _slab_of(row: SlabRow, arena: Arena, slabs: SlabTable, owner: int | None) -> Slab:
    lease: Lease = row.lease if row.ttl is None else row.ttl
    slab = Slab(
        arena,
        slabs.mappings,
        id=row.id,
        generation=row.generation,
        slot=row.slot,
        nbytes=row.nbytes,
        tenant=row.tenant,
        name=row.name,
        lease=lease,
        owner=owner,
        atomics=row.atomics,
        draft_of=row.draft_of,
    )
    slab.life = row.generation if row.life is None else row.life
    slab.memory_id = row.memory_id
    slab.commits = row.commits
    slab.checksums = Checksums(row.block or 0, row.checksums or b"")
    return slab


def _hold(slab: Slab, slabs: SlabTable, holders: list[HolderRow]) -> None:
    for holder in holders:
        slabs.hold(slab, holder.session, holder.transport, "r" if holder.mode == "r" else "rw")
