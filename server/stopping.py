"""What a server that stops in order leaves to the next one: who was here, and slabs that nobody reaches past it.

Sessions end then, and nobody knows any more who has what mapped. So that memory gets another generation, and who has it
mapped must ask for it anew. Those who were here are told, for as long as sessions may be resumed after a start, that it
was the server that stopped: others have been silent, and their handles are stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from farpool.protocol.errors import FarpoolError
from farpool.server.catalog import Catalog
from farpool.server.generations import Generations
from farpool.server.sessions import Session
from farpool.server.slabs import Slab

__all__ = ["leave_sessions", "renumber", "stopped_sessions"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.stopping")

LEAVE: Final = "INSERT OR REPLACE INTO stopped (session, secret_hash, epoch) VALUES (?, ?, ?)"
FORGET: Final = "DELETE FROM stopped"
RENUMBER: Final = "UPDATE slabs SET generation = ?, slot = ?, life = ? WHERE id = ?"


def leave_sessions(catalog: Catalog, sessions: Sequence[Session]) -> None:
    """Record who was here at the stop; without room for that all handles are stale afterwards."""
    epoch = catalog.meta_int("epoch", 0)
    with suppress(FarpoolError):
        catalog.write((FORGET, ()), *((LEAVE, (each.id, each.secret_hash, epoch)) for each in sessions))


def stopped_sessions(catalog: Catalog) -> dict[int, bytes]:
    """Return the sessions, and what their secrets are checked with, that ended as the last server stopped in order."""
    epoch = catalog.meta_int("epoch", 0)
    return dict(catalog.rows("SELECT session, secret_hash FROM stopped WHERE epoch = ?", epoch))


def renumber(catalog: Catalog, generations: Generations, slab: Slab) -> None:
    """Give the memory of a slab another generation, in a word of its own: the catalog says which of the two counts."""
    try:
        slot = generations.take_slot()
    except FarpoolError as error:
        log.warning("slab keeps its generation", slab=slab.id, reason=str(error))
        return
    generation = catalog.next_number("next_generation")
    generations.store(slot, generation)
    try:
        catalog.write((RENUMBER, (generation, slot, slab.life, slab.id)))
    except FarpoolError as error:
        log.warning("slab keeps its generation", slab=slab.id, reason=str(error))
    else:
        slab.generation, slab.slot, slot = generation, slot, slab.slot
    generations.store(slot, 0)
    generations.release_slot(slot)
