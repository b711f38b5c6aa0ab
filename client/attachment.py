"""How slabs are attached: what a slab and its awaitable twin share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from farpool.client.deadlines import seconds_left
from farpool.client.holdings import Holdings, Key
from farpool.client.pipeline import Pipeline
from farpool.client.session import Session
from farpool.client.verified import Checksums
from farpool.protocol.addresses import fill_host
from farpool.protocol.errors import FarpoolError, ReadOnly, ServerLost, StaleSlab
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Commit,
    Committed,
    DraftEnd,
    Free,
    Open,
    Reply,
    Reserve,
    SlabInfo,
)
from farpool.transports.contract import ClientTransport, Mode, Region, Ticket

__all__ = ["Attachment", "Attachments"]


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
        self.serial = owner.holdings.add(self.key, mode, region)

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
        if not self._close():
            return False
        self.owner.holdings.release(self.key, self.serial)
        return True

    def withdraw(self) -> bool:
        """Close the region; return whether the server must be told that this session has none of the slab any more."""
        return self._close() and self.owner.holdings.forget(self.key, self.serial)

    def undo(self) -> None:
        """Take back an open that nobody waits for any more."""
        self.let_go()
        if self.exclusive:
            self.owner.holdings.exclusives.give_up(self.info.id, self.exclusive)
        self.owner.session.flush()

    def _close(self) -> bool:
        """Close the region; return whether it was open until now, and is this process's."""
        self.region.close()
        if self._gone or self.owner.session.forked:
            return False
        self._gone = True
        return True


class Attachments:
    """All that a session has attached over its transport. Thread-safe."""

    def __init__(self, session: Session, transport: str, client: ClientTransport, timeout: float) -> None:
        self.session = session
        self.transport = transport
        self.holdings = Holdings(session, transport)
        self.timeout = timeout
        self._client = client

    # Attaching ----------------------------------------------------------------------------------------------

    def allocate(self, request: Allocate, deadline: float) -> Attachment:
        """Make a slab and attach it; if that cannot be, the slab is freed."""
        return self._make(request, deadline)

    def _make(self, request: Allocate | Reserve, deadline: float) -> Attachment:
        self.holdings.sweep()
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
        self.holdings.sweep()
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
        if not request.exclusive:
            return self._open(request, mode, deadline)
        exclusives, granted = self.holdings.exclusives, 0
        try:
            while True:
                mark = exclusives.mark()
                attachment = self._open(request, mode, deadline)
                granted = attachment.info.id
                attachment.exclusive = exclusives.claim(granted, mark)
                if attachment.exclusive:
                    return attachment
                attachment.let_go()  # another thread may have let other sessions in meanwhile: ask again
        except BaseException:
            if granted:
                exclusives.give_up(granted)
                self.session.flush()
            raise

    def _open(self, request: Open, mode: Mode, deadline: float) -> Attachment:
        self.holdings.sweep()
        detaches = self.holdings.detaches
        reply: Attached | None = None
        try:
            reply = self.session.call(request, Attached, deadline, partial(self._undo_open, request))
            attachment = self._adopt_or_again(reply, mode, deadline)
            if detaches != self.holdings.detaches:  # of this very slab, perhaps, and after it was granted: ask again
                self._renew(attachment.info, mode, 0, deadline - monotonic())
        except BaseException:
            if reply is not None:
                self._undo_open(request, reply)
                self.session.flush()
            raise
        return attachment

    def _undo_open(self, request: Open, reply: Reply) -> None:
        """Take back what the server has granted to an open that nobody waits for any more."""
        self._detach_late(reply)
        if request.exclusive:
            assert isinstance(reply, Attached)
            self.holdings.exclusives.give_up(reply.slab.id)

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
        self.holdings.sweep()
        ends: list[DraftEnd] = []
        try:
            for _, withdraw in drafts:
                ends.append(withdraw())  # one by one: a later one that is in use hides none of these
            return self.session.call(Commit(drafts=ends), Committed, deadline).slabs
        except BaseException:
            for (attachment, _), end in zip(drafts, ends, strict=False):
                if end.detached:  # that may not have arrived
                    self.holdings.part_detach(attachment.key)
            raise

    def attach_again(self, info: SlabInfo, mode: Mode, deadline: float) -> Attachment:
        """Attach the memory that a slab has now; raise ``StaleSlab`` if this life of it has ended."""
        self.holdings.sweep()
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
        return Attachment(self, reply, mode, ticket, self._reach(ticket, deadline))

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
            mode=self.holdings.widest(key, mode),
            transport=self.transport,
            memory=memory,
        )
        reply = self.session.call(request, Attached, monotonic() + max(timeout, 0.0))
        return fill_host(reply.params, self.session.address)

    def _free_late(self, reply: Reply) -> None:
        """Free a slab whose allocation nobody waits for any more."""
        assert isinstance(reply, Attached)
        self.holdings.part_detach((reply.slab.id, reply.slab.memory_generation))
        self.session.part(Free(id=reply.slab.id, generation=reply.slab.generation))

    def _detach_late(self, reply: Reply) -> None:
        """Take back an attach that nobody waits for any more."""
        assert isinstance(reply, Attached)
        self.holdings.part_detach((reply.slab.id, reply.slab.memory_generation))

    def close(self) -> None:
        """Close every region and the transport's client half; live views keep their memory. Idempotent."""
        self.holdings.close()
        self._client.close()
