"""Which session alone has a slab attached. Not thread-safe."""

from __future__ import annotations

from farpool.protocol.errors import SlabBusy
from farpool.server.catalog import Catalog
from farpool.server.sessions import Session, SessionTable
from farpool.server.slabs import Slab

__all__ = ["Exclusives"]


class Exclusives:
    """The slabs that one session has for itself; the catalog remembers them over a restart."""

    def __init__(self, catalog: Catalog, sessions: SessionTable) -> None:
        self._catalog = catalog
        self._sessions = sessions
        self._slabs: dict[int, dict[int, Slab]] = {}
        self._confirmed: set[int] = set()

    def restore(self, slabs: list[Slab]) -> None:
        """Go on with what a restart brought back."""
        for slab in slabs:
            if slab.exclusive is not None:
                self._slabs.setdefault(slab.exclusive, {})[slab.id] = slab
                self._confirmed.add(slab.id)

    def check(self, slab: Slab, session: Session) -> None:
        """Raise ``SlabBusy`` if another session has the slab for itself."""
        if slab.exclusive not in (None, session.id):
            raise SlabBusy(
                f"{slab.label} belongs to session {slab.exclusive} alone until that lets go of it; try again then",
                id=slab.id,
                session=slab.exclusive,
            )

    def claim(self, slab: Slab, session: Session) -> None:
        """Keep everybody else out; raise ``SlabBusy`` while others have the slab attached.

        Holders whose session has ended do not count: they are let in no more, and the caller sees to what they still
        map.
        """
        self.check(slab, session)
        others = {holder for holder, _ in slab.holders if holder != session.id and self._sessions.get(holder)}
        if others:
            raise SlabBusy(
                f"{slab.label} is attached by {len(others)} other session{'s' * (len(others) > 1)} "
                f"({', '.join(map(str, sorted(others)[:8]))}); try again when they have let go of it",
                id=slab.id,
                sessions=len(others),
            )
        if slab.exclusive is None:
            slab.exclusive = session.id
            self._slabs.setdefault(session.id, {})[slab.id] = slab
            self._catalog.set_exclusive(slab.id, session.id)

    def confirm(self, slab: Slab) -> None:
        """Note that the session is told that it has the slab for itself."""
        self._confirmed.add(slab.id)

    def withdraw(self, slab: Slab, session: Session) -> None:
        """Take back a claim that came to nothing, unless the session was told of another."""
        if slab.exclusive == session.id and slab.id not in self._confirmed:
            self.release(slab)

    def release(self, slab: Slab) -> None:
        """Let others in again; nothing happens if they are not kept out."""
        if slab.exclusive is None:
            return
        mine = self._slabs[slab.exclusive]
        del mine[slab.id]
        if not mine:
            del self._slabs[slab.exclusive]
        slab.exclusive = None
        self._confirmed.discard(slab.id)
        if slab.state == "live":
            self._catalog.set_exclusive(slab.id, None)

    def give_up(self, session_id: int, slab_id: int) -> None:
        """Let others attach a slab again that the session had for itself; nothing happens if it had not."""
        slab = self._slabs.get(session_id, {}).get(slab_id)
        if slab is not None:
            self.release(slab)

    def end_session(self, session_id: int) -> None:
        """Let others in again wherever the session kept them out."""
        for slab in list(self._slabs.get(session_id, {}).values()):
            self.release(slab)
