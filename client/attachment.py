"""What a session has attached, and how each slab is let go: what a slab and its awaitable twin share.

A slab may be attached several times over. The server counts it once a session, so that ``Detach`` is sent
when the last attachment goes, and not while an ``open`` that may find the same slab is out.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, NamedTuple

from farpool.client.deadlines import seconds_left
from farpool.client.pipeline import Pipeline
from farpool.client.session import Session
from farpool.client.verified import Checksums
from farpool.protocol.addresses import fill_host
from farpool.protocol.errors import FarpoolError, ReadOnly, RegionInUse, ServerLost, StaleSlab
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Commit,
    Committed,
    Detach,
    DraftEnd,
    Free,
    Open,
    Reply,
    Reserve,
    SlabInfo,
)
from farpool.transports.contract import ClientTransport, Mode, Region, Ticket

__all__ = ["Attachment", "Attachments"]

Key = tuple[int, int]
"""Id of a slab, and generation of the memory of it that is attached: commits give it new ones."""


class Attachment:
    """One attached slab. Thread-safe. Its slab is let go as well when its region is dropped without ``close``."""

    __slots__ = ("_gone", "checksums", "exclusive", "info", "mode", "owner", "region", "serial", "ticket")

    def __init__(self, owner: Attachments, reply: Attached, mode: Mode, ticket: Ticket, region: Region) -> None:
        self.owner = owner
        self._gone = False
        self.exclusive = 0
        """Number by which the session was given the slab for itself; 0 if it was not."""
        self.info = info = reply.slab
        self.checksums = (
            Checksums(reply.block, reply.checksums, info.nbytes, ticket.label) if reply.block and info.commits else None
        )
        """What reads of it are verified with."""
        self.mode: Mode = mode
        self.ticket = ticket
        self.region = region
        self.serial = next(owner.serials)

    @property
    def key(self) -> Key:
        """Id, and generation of the memory."""
        return self.info.id, self.info.memory_generation

    @property
    def session(self) -> Session:
        """The session that has it attached."""
        return self.owner.session

    @property
    def transport(self) -> str:
        """Name of the transport it is attached over."""
        return self.owner.transport

    def close(self) -> None:
        """Let go of the slab, which lives on; ``RegionInUse`` while views live. Idempotent."""
        if self.let_go():
            self.owner.session.flush()

    def let_go(self) -> bool:
        """Close the region and queue what the server must know; return False if that was done before."""
        already, gone = self._gone, self.withdraw()
        if gone:
            self.owner.part_detach(self.key)
        return not already and self._gone

    def withdraw(self) -> bool:
        """Close the region; return whether the server must be told that this session has none of the slab any more."""
        self.region.close()
        if self._gone or self.owner.session.forked:
            return False
        self._gone = True
        return self.owner.forget(self.key, self.serial)


class Held(NamedTuple):
    """What is attached, for as long as anyone holds its region: a slab, one of its methods, an array."""

    mode: Mode
    region: weakref.ref[Region]


class Attachments:
    """All that a session has attached over its transport. Thread-safe."""

    def __init__(self, session: Session, transport: str, client: ClientTransport, timeout: float) -> None:
        self.session = session
        self.transport = transport
        self.dropped: deque[tuple[Key, int]] = deque()
        """Attachments whose region nobody holds any more; dealt with before the next request."""
        self.serials = count()
        self._client = client
        self.timeout = timeout
        self.given_up: deque[tuple[int, int]] = deque()
        """Slabs that a handle had for itself which nobody holds any more, dealt with as well."""
        self._exclusive: dict[int, set[int]] = {}
        self._lock = threading.RLock()
        self._held: dict[Key, dict[int, Held]] = {}  # by slab, then by serial number
        self._detaches = 0
        session.on_event = self._event

    # Attaching ----------------------------------------------------------------------------------------------

    def allocate(self, request: Allocate, deadline: float) -> Attachment:
        """Make a slab and attach it; if that cannot be, the slab is freed."""
        return self._make(request, deadline)

    def _make(self, request: Allocate | Reserve, deadline: float) -> Attachment:
        self.sweep()
        reply: Attached | None = None
        try:
            reply = self.session.call(request, Attached, deadline, self._free_late)
            return self.adopt(reply, "rw", deadline)
        except BaseException:
            if reply is not None:
                self._free_late(reply)
                self.session.flush()
            raise

    def allocate_many(self, requests: Sequence[Allocate], deadline: float) -> list[Attachment]:
        """Make many slabs with pipelined requests; if one cannot be made, none is kept."""
        self.sweep()
        replies = Pipeline(self.session, requests, Attached, deadline, self._free_late).run()
        made = [reply for reply in replies if isinstance(reply, Attached)]
        errors = [reply for reply in replies if isinstance(reply, FarpoolError)]
        try:
            if errors:
                raise errors[0]
            return [self.adopt(reply, "rw", deadline) for reply in made]
        except BaseException:
            for reply in made:
                self._free_late(reply)
            self.session.flush()
            raise

    def open(self, request: Open, mode: Mode, deadline: float) -> Attachment:
        """Find a slab and attach it."""
        self.sweep()
        detaches = self._detaches
        reply: Attached | None = None
        try:
            reply = self.session.call(request, Attached, deadline, self._detach_late)
            attachment = self._adopt_or_again(reply, mode, deadline)
        except BaseException:
            if reply is not None:
                self._detach_late(reply)
                self.session.flush()
            raise
        if detaches != self._detaches:  # of this very slab, perhaps, and after it was granted: ask again
            self._renew(attachment.info, mode, 0, deadline - monotonic())
        if request.exclusive:
            with self._lock:
                attachment.exclusive = attachment.serial + 1
                self._exclusive.setdefault(attachment.info.id, set()).add(attachment.exclusive)
        return attachment

    def reserve(self, attachment: Attachment, *, copy: bool, deadline: float) -> Attachment:
        """Make a draft of an attached slab and attach it; if that cannot be, the draft is ended."""
        if attachment.mode == "r":
            raise ReadOnly(f'slab {attachment.ticket.label} was opened in mode "r"; open it in mode "rw" to reserve')
        info = attachment.info
        request = Reserve(id=info.id, generation=info.generation, transport=self.transport, copy=copy)
        return self._make(request, deadline)

    def commit(self, drafts: Sequence[tuple[Attachment, Callable[[], DraftEnd]]], deadline: float) -> list[SlabInfo]:
        """Commit drafts, each with what lets go of its memory; ``RegionInUse`` commits none."""
        self.session.check()
        self.sweep()
        ends: list[DraftEnd] = []
        try:
            for _, withdraw in drafts:
                ends.append(withdraw())  # one by one: a later one that is in use hides none of these
            return self.session.call(Commit(drafts=ends), Committed, deadline).slabs
        except BaseException:
            for (attachment, _), end in zip(drafts, ends, strict=False):
                if end.detached:  # that may not have arrived
                    self.part_detach(attachment.key)
            raise

    def attach_again(self, info: SlabInfo, mode: Mode, deadline: float) -> Attachment:
        """Attach the memory that a slab has now; raise ``StaleSlab`` if this life of it has ended."""
        self.sweep()
        request = Attach(id=info.id, generation=info.generation, mode=mode, transport=self.transport)
        while True:
            reply = self.session.call(request, Attached, deadline, self._detach_late)
            try:
                return self.adopt(reply, mode, deadline)
            except StaleSlab:  # replaced once more, before it was reached; that it has ended, the server says
                self._detach_late(reply)
                if monotonic() >= deadline:
                    raise
            except BaseException:
                self._detach_late(reply)
                self.session.flush()
                raise

    def adopt(self, reply: Attached, mode: Mode, deadline: float) -> Attachment:
        """Make the region of a slab that the server has attached."""
        info = reply.slab
        key = info.id, info.memory_generation
        ticket = Ticket(
            nbytes=info.nbytes,
            slab_id=info.id,
            generation=info.memory_generation,
            writable=mode == "rw" and not info.commits,
            params=fill_host(reply.params, self.session.address),
            renew=partial(self._renew, info, mode, info.memory_generation),
            timeout=self.timeout,
            atomics=info.atomics,
            label=info.name or f"#{info.id}",
        )
        region = self._reach(ticket, deadline)
        attachment = Attachment(self, reply, mode, ticket, region)
        item, dropped = (key, attachment.serial), self.dropped
        # The collector runs in any thread, with any lock held: what it takes is noted, and no more.
        held = Held(mode, weakref.ref(region, lambda _: dropped.append(item)))
        with self._lock:
            self._held.setdefault(key, {})[attachment.serial] = held
        return attachment

    def _adopt_or_again(self, reply: Attached, mode: Mode, deadline: float) -> Attachment:
        """Make the region of a slab, of other memory if that was replaced before it was reached."""
        try:
            return self.adopt(reply, mode, deadline)
        except StaleSlab:
            self._detach_late(reply)
            return self.attach_again(reply.slab, mode, deadline)

    def _reach(self, ticket: Ticket, deadline: float) -> Region:
        try:
            return self._client.attach(ticket, seconds_left(deadline))
        except ServerLost:  # it may have restarted since it replied: ask again, and it says where it is now
            ticket.params = ticket.renew(deadline - monotonic())
            return self._client.attach(ticket, seconds_left(deadline))

    def _renew(self, info: SlabInfo, mode: Mode, memory: int, timeout: float) -> Mapping[str, Any]:
        """Attach this memory of the slab again, or with *memory* 0 what it has now; return the new parameters."""
        key = info.id, info.memory_generation
        request = Attach(
            id=info.id,
            generation=info.generation,
            mode=self._widest(key, mode),
            transport=self.transport,
            memory=memory,
        )
        reply = self.session.call(request, Attached, monotonic() + max(timeout, 0.0))
        return fill_host(reply.params, self.session.address)

    def _widest(self, key: Key, mode: Mode) -> Mode:
        """Return what the session's grant must allow: the server knows one grant a session."""
        with self._lock:
            return "rw" if any(held.mode == "rw" for held in self._held.get(key, {}).values()) else mode

    def _free_late(self, reply: Reply) -> None:
        """Free a slab whose allocation nobody waits for any more."""
        assert isinstance(reply, Attached)
        self.part_detach((reply.slab.id, reply.slab.memory_generation))
        self.session.part(Free(id=reply.slab.id, generation=reply.slab.generation))

    def _detach_late(self, reply: Reply) -> None:
        """Take back an attach that nobody waits for any more."""
        assert isinstance(reply, Attached)
        key = reply.slab.id, reply.slab.memory_generation
        with self._lock:
            if key not in self._held:
                self.part_detach(key)

    # Letting go ---------------------------------------------------------------------------------------------

    def release(self, key: Key, serial: int) -> None:
        """Forget an attachment whose region is closed; queue the Detach if it was the last."""
        if self.forget(key, serial):
            self.part_detach(key)

    def forget(self, key: Key, serial: int) -> bool:
        """Forget an attachment whose region is closed; return whether it was the last of its slab."""
        with self._lock:
            held = self._held.get(key)
            if held is None or held.pop(serial, None) is None or held:
                return False
            del self._held[key]
            self._detaches += 1
            return True

    def part_detach(self, key: Key) -> None:
        """Queue the word that this session has let go of a slab."""
        self.session.part(Detach(id=key[0], generation=key[1], transport=self.transport))

    def revoke(self, key: Key) -> None:
        """Close every attachment of a slab that is gone: its operations raise ``StaleSlab`` from now on."""
        for serial, region in self._regions(key):
            with suppress(RegionInUse):  # arrays of it live on; the pages are given back when they go
                region.close()
                self.release(key, serial)
        self.session.flush()

    def revoke_all(self, slab_id: int) -> None:
        """Do the same for a slab whose life has ended, whatever memory of it is attached."""
        with self._lock:
            keys = [key for key in self._held if key[0] == slab_id]
        for key in keys:
            self.revoke(key)

    def give_up(self, slab_id: int, number: int) -> None:
        """Let other sessions attach a slab again, once no handle here has it for this session alone."""
        with self._lock:
            numbers = self._exclusive.get(slab_id, set())
            numbers.discard(number)
            if numbers or self._exclusive.pop(slab_id, None) is None:
                return
        self.session.part(Detach(id=slab_id, generation=0, transport=self.transport, exclusive=True))

    def sweep(self) -> None:
        """Deal with what the collector took."""
        while self.given_up:
            try:
                self.give_up(*self.given_up.popleft())
            except IndexError:
                break  # another thread was quicker
        while self.dropped:
            try:
                key, serial = self.dropped.popleft()
            except IndexError:
                return  # another thread was quicker
            self.release(key, serial)

    def close(self) -> None:
        """Close every region and the transport's client half; live views keep their memory. Idempotent."""
        self.sweep()
        with self._lock:
            keys = list(self._held)
        for key in keys:
            for serial, region in self._regions(key):
                with suppress(RegionInUse):  # its arrays go on with the memory that they have
                    region.close()
                    self.release(key, serial)
        self._client.close()

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
                self.revoke((slab_id, generation))
            case _:
                pass  # draining needs no act of ours; a newer server may send other events
