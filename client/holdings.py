"""What a session has attached, and how each slab is let go.

A slab may be attached several times over. The server counts it once a session, so that ``Detach`` is sent
when the last attachment goes, and not while an ``open`` that may find the same slab is out.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from farpool.client.exclusive import Exclusives
from farpool.client.session import Session
from farpool.client.succession import Bond, ended
from farpool.protocol.errors import RegionInUse
from farpool.protocol.messages import Detach
from farpool.transports.contract import Mode, Region

__all__ = ["Holdings", "Key"]

Key = tuple[int, int]
"""Id of a slab, and generation of the memory of it that is attached: commits give it new ones."""


class Held(NamedTuple):
    """What is attached, for as long as anyone holds its region: a slab, one of its methods, an array."""

    mode: Mode
    region: weakref.ref[Region]


class Holdings:
    """All that a session has attached over its transport. Thread-safe."""

    def __init__(self, session: Session, transport: str) -> None:
        self.dropped: deque[tuple[Key, int]] = deque()
        """Attachments whose region nobody holds any more; dealt with before the next request."""
        self.exclusives = Exclusives(session, transport)
        self.detaches = 0
        """Counts what was let go of: who opens a slab meanwhile asks again."""
        self._session = session
        self._transport = transport
        self._serials = count(1)
        self._lock = threading.RLock()
        self._held: dict[Key, dict[int, Held]] = {}  # by slab, then by serial number
        self._bygone: list[weakref.ref[Region]] = []
        self._session_serial = 0
        session.on_event, session.on_new_session = self._event, self.begin_anew
        self.begin_anew()

    def add(self, key: Key, mode: Mode, region: Region, bond: Bond) -> int:
        """Note what is attached; return its serial number. ``StaleSlab`` if its session has ended meanwhile."""
        serial, dropped = next(self._serials), self.dropped
        # The collector runs in any thread, with any lock held: what it takes is noted, and no more.
        held = Held(mode, weakref.ref(region, lambda _: dropped.append((key, serial))))
        with self._lock:
            if bond.serial == self._session_serial:
                self._held.setdefault(key, {})[serial] = held
                return serial
        _end(region)
        raise ended(bond)

    def begin_anew(self) -> None:
        """Close what was attached in a session that has ended: whoever may have it now has not heard of us."""
        with self._lock:
            self._session_serial = self._session.succession.serial
            self._bygone += [held.region for each in self._held.values() for held in each.values()]
            self._held = {}
            self.exclusives.begin_anew(self._session_serial)
        while self._bygone:
            region = self._bygone[-1]()
            if region is not None:
                _end(region)
            self._bygone.pop()

    def widest(self, key: Key, mode: Mode) -> Mode:
        """Return what the session's grant must allow: the server knows one grant a session."""
        with self._lock:
            return "rw" if any(held.mode == "rw" for held in self._held.get(key, {}).values()) else mode

    def release(self, key: Key, serial: int) -> None:
        """Forget an attachment whose region is closed; queue the Detach if it was the last."""
        with self._lock:
            if self.forget(key, serial):
                self.part_detach(key, self._session_serial)

    def forget(self, key: Key, serial: int) -> bool:
        """Forget an attachment whose region is closed; return whether it was the last of its slab."""
        with self._lock:
            held = self._held.get(key)
            if held is None or held.pop(serial, None) is None or held:
                return False
            del self._held[key]
            return True

    def part_detach(self, key: Key, session_serial: int) -> None:
        """Queue the word that a session has let go of a slab, unless it has it attached or has ended."""
        with self._lock:
            if key not in self._held and session_serial == self._session_serial:
                self.detaches += 1
                request = Detach(id=key[0], generation=key[1], transport=self._transport)
                self._session.part(request, self._session_serial)

    def revoke(self, key: Key) -> None:
        """Close every attachment of a slab that is gone: its operations raise ``StaleSlab`` from now on."""
        for serial, region in self._regions(key):
            with suppress(RegionInUse):  # arrays of it live on; the pages are given back when they go
                region.close()
                self.release(key, serial)
        self._session.flush()

    def revoke_all(self, slab_id: int) -> None:
        """Do the same for a slab whose life has ended, whatever memory of it is attached."""
        self.exclusives.lose(slab_id)
        with self._lock:
            keys = [key for key in self._held if key[0] == slab_id]
        for key in keys:
            self.revoke(key)

    def sweep(self) -> None:
        """Deal with what the collector took."""
        self.exclusives.sweep()
        while self.dropped:
            try:
                key, serial = self.dropped.popleft()
            except IndexError:
                return  # another thread was quicker
            self.release(key, serial)

    def close(self) -> None:
        """Close every region; live views keep their memory. Idempotent."""
        self.sweep()
        with self._lock:
            keys = list(self._held)
        for key in keys:
            for serial, region in self._regions(key):
                with suppress(RegionInUse):  # its arrays go on with the memory that they have
                    region.close()
                    self.release(key, serial)

    def mapped(self) -> list[Key]:
        """Return the slabs whose memory views of this process still show."""
        self.sweep()
        with self._lock:
            return list(self._held)

    def _regions(self, key: Key) -> list[tuple[int, Region]]:
        with self._lock:
            found = [(serial, held.region()) for serial, held in self._held.get(key, {}).items()]
        return [(serial, region) for serial, region in found if region is not None]

    def _event(self, kind: str, fields: dict[str, Any]) -> None:
        match kind, fields:
            case (("revoked" | "expired" | "replaced"), {"id": int(slab_id), "generation": int(generation)}):
                if kind != "replaced":
                    self.exclusives.lose(slab_id)
                self.revoke((slab_id, generation))
            case _:
                pass  # draining needs no act of ours; a newer server may send other events


def _end(region: Region) -> None:
    """See to it that no operation reaches the slab by *region* any more; views go on with the memory that they have."""
    try:
        region.close()
    except RegionInUse:
        if retire := getattr(region, "retire", None):
            retire()
