"""Start-up: make catalog, arena and generation words agree, whatever the last server was doing when it ended.

The catalog says what lives; a slab whose memory is gone is dropped from it, memory without a row is removed,
and each generation word is written anew.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import structlog

from farpool.protocol.units import Lease
from farpool.server.arena import Arena
from farpool.server.catalog import Catalog, HolderRow, SessionRow, SlabRow
from farpool.server.deadlines import Clock, boot_id
from farpool.server.generations import GenerationFile
from farpool.server.sessions import SessionTable
from farpool.server.slabs import Slab, SlabTable

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
    generations: GenerationFile,
    slabs: SlabTable,
    sessions: SessionTable,
    clock: Clock,
) -> Restored:
    """Bring back what survived, and remove what nobody owns; fills *slabs* and *sessions*."""
    same_boot = catalog.meta_text("boot_id") == boot_id()
    catalog.set_meta("boot_id", boot_id())
    known = {row.id: row for row in catalog.sessions()}
    holders: dict[int, list[HolderRow]] = defaultdict(list)
    for holder in catalog.holders() if same_boot else ():
        if holder.session in known:
            holders[holder.slab].append(holder)
    files = arena.slabs()
    live, reclaiming, dropped = _sort_rows(catalog, holders, files, known)
    orphans = _remove_unknown(arena, files, live)
    generations.restore({row.slot: row.generation for row in live})
    for session in known.values():
        sessions.restore(session.id, session.tenant, session.secret_hash)
    for row in live:
        slab = _slab_of(row, arena, row.owner if row.owner in known else None)
        if row.ttl is not None and slab.owner is None:
            # A deadline of another boot says nothing on this clock: the lease begins anew, and is not cut short.
            slab.deadline = row.deadline if same_boot and row.deadline is not None else clock() + row.ttl
        slabs.reserve(slab)
        slabs.admit(slab)
        _hold(slab, slabs, holders[row.id])
    for row in reclaiming:
        slab = _slab_of(row, arena, None)
        slab.state = "reclaiming"
        slabs.add_reclaiming(slab)
        _hold(slab, slabs, holders[row.id])
    return Restored(len(live), len(known), len(reclaiming), dropped, orphans)


def _sort_rows(
    catalog: Catalog, holders: dict[int, list[HolderRow]], files: dict[int, int], known: dict[int, SessionRow]
) -> tuple[list[SlabRow], list[SlabRow], int]:
    live: list[SlabRow] = []
    reclaiming: list[SlabRow] = []
    dropped = 0
    with catalog.together():
        for row in catalog.slabs():
            if row.reclaiming and holders[row.id]:
                reclaiming.append(row)
            elif not row.reclaiming and _survived(row, files, known):
                live.append(row)
            else:
                dropped += not row.reclaiming
                catalog.delete_slab(row.id, held=True)
    return live, reclaiming, dropped


def _survived(row: SlabRow, files: dict[int, int], known: dict[int, SessionRow]) -> bool:
    if files.get(row.id, 0) < row.nbytes:
        log.info("slab forgotten", slab=row.id, name=row.name, reason="its memory is gone from the arena")
        return False
    return row.lease != "session" or row.owner in known


def _remove_unknown(arena: Arena, files: dict[int, int], live: list[SlabRow]) -> int:
    unknown = set(files) - {row.id for row in live}
    for slab_id in unknown:
        arena.remove(slab_id)
    if unknown:
        log.info("orphan slab files removed", count=len(unknown), nbytes=sum(files[slab_id] for slab_id in unknown))
    return len(unknown)


def _slab_of(row: SlabRow, arena: Arena, owner: int | None) -> Slab:
    lease: Lease = row.lease if row.ttl is None else row.ttl
    return Slab(
        arena,
        id=row.id,
        generation=row.generation,
        slot=row.slot,
        nbytes=row.nbytes,
        tenant=row.tenant,
        name=row.name,
        lease=lease,
        owner=owner,
    )


def _hold(slab: Slab, slabs: SlabTable, holders: list[HolderRow]) -> None:
    for holder in holders:
        slabs.hold(slab, holder.session, holder.transport, "r" if holder.mode == "r" else "rw")
