"""How slabs are attached: what a slab and its awaitable twin share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from farpool.client.deadlines import seconds_left
from farpool.client.holdings import Holdings, Key
from farpool.client.pipeline import Pipeline
from farpool.client.session import Session
from farpool.client.succession import Bond
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
    Request,
    Reserve,
    SlabInfo,
)
from farpool.transports.contract import ClientTransport, Mode, Region, Ticket

__all__ = ["Attachment", "Attachments"]

R = TypeVar("R", bound=Reply)


class Attachment:
    """One attached slab. Thread-safe. Its slab is let go as well when its region is dropped without ``close``."""

    __slots__ = ("_gone", "bond", "checksums", "exclusive", "info", "mode", "owner", "region", "serial", "ticket")

    def __init__(
        self, owner: Attachments, reply: Attached, mode: Mode, ticket: Ticket, region: Region, bond: Bond
    ) -> None:
        self.owner = owner
        self.bond = bond
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
        self.serial = owner.holdings.add(self.key, mode, region, bond)

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

    def call(self, request: Request, reply_type: type[R], deadline: float) -> R:
        """Ask the server something about the slab; ``StaleSlab`` if the session that has it attached has ended."""
        return self.owner.session.call(request, reply_type, deadline, bond=self.bond)

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
        return self._make(request, None, deadline)

    def _make(self, request: Allocate | Reserve, bond: Bond | None, deadline: float) -> Attachment:
        self.holdings.sweep()
        made: tuple[Attached, int] | None = None
        try:
            made = self.session.ask(request, Attached, deadline, self._free_late, bond)
            return self.adopt(*made, "rw", deadline)
        except BaseException:
            if made is not None:
                self._free_late(*made)
                self.session.flush()
            raise

    def allocate_many(self, requests: Sequence[Allocate], deadline: float) -> list[Attachment]:
        """Make many slabs with pipelined requests; if one cannot be made, none is kept."""
        self.holdings.sweep()
        outcomes = Pipeline(self.session, requests, Attached, deadline, self._free_late).run()
        made = [outcome for outcome in outcomes if not isinstance(outcome, FarpoolError)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, FarpoolError)]
        try:
            if errors:
                raise errors[0]
            return [self.adopt(reply, serial, "rw", deadline) for reply, serial in made]
        except BaseException:
            for reply, serial in made:
                self._free_late(reply, serial)
            self.session.flush()
            raise

    def open(self, request: Open, mode: Mode, deadline: float) -> Attachment:
        """Find a slab and attach it."""
        exclusives, granted = self.holdings.exclusives, 0
        try:
            while True:
                mark = exclusives.mark()
                try:
                    attachment = self._open(request, mode, deadline)
                except StaleSlab as error:
                    if not error.details.get("session_ended"):
                        raise
                    continue  # another session has begun meanwhile: ask in that
                if not request.exclusive:
                    return attachment
                granted = attachment.info.id
                attachment.exclusive = exclusives.claim(granted, attachment.bond.serial, mark)
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
        granted: tuple[Attached, int] | None = None
        try:
            granted = self.session.ask(request, Attached, deadline, partial(self._undo_open, request))
            attachment = self._adopt_or_again(*granted, mode, deadline, alone=request.exclusive)
            if detaches != self.holdings.detaches:  # of this very slab, perhaps, and after it was granted: ask again
                self._renew(attachment.info, mode, 0, attachment.bond, deadline - monotonic())
        except BaseException:
            if granted is not None:
                self._undo_open(request, *granted)
                self.session.flush()
            raise
        return attachment

    def _undo_open(self, request: Open, reply: Reply, serial: int) -> None:
        """Take back what the server has granted to an open that nobody waits for any more."""
        self._detach_late(reply, serial)
        if request.exclusive:
            assert isinstance(reply, Attached)
            self.holdings.exclusives.give_up(reply.slab.id)

    def reserve(self, attachment: Attachment, *, copy: bool, deadline: float) -> Attachment:
        """Make a draft of an attached slab and attach it; if that cannot be, the draft is ended."""
        if attachment.mode == "r":
            raise ReadOnly(f'slab {attachment.ticket.label} was opened in mode "r"; open it in mode "rw" to reserve')
        info = attachment.info
        request = Reserve(id=info.id, generation=info.generation, transport=self.transport, copy=copy)
        return self._make(request, attachment.bond, deadline)

    def commit(self, drafts: Sequence[tuple[Attachment, Callable[[], DraftEnd]]], deadline: float) -> list[SlabInfo]:
        """Commit drafts, each with what lets go of its memory; ``RegionInUse`` commits none."""
        self.session.check()
        self.holdings.sweep()
        ends: list[DraftEnd] = []
        try:
            for _, withdraw in drafts:
                ends.append(withdraw())  # one by one: a later one that is in use hides none of these
            bond = drafts[0][0].bond if drafts else None
            return self.session.call(Commit(drafts=ends), Committed, deadline, bond=bond).slabs
        except BaseException:
            for (attachment, _), end in zip(drafts, ends, strict=False):
                if end.detached:  # that may not have arrived
                    self.holdings.part_detach(attachment.key, attachment.bond.serial)
            raise

    def attach_again(self, info: SlabInfo, mode: Mode, bond: Bond | None, deadline: float) -> Attachment:
        """Attach the memory that a slab has now; ``StaleSlab`` if this life of it, or what *bond* is to, has ended."""
        self.holdings.sweep()
        request = Attach(id=info.id, generation=info.generation, mode=mode, transport=self.transport)
        alone = bond is not None and bond.alone
        while True:
            reply, serial = self.session.ask(request, Attached, deadline, self._detach_late, bond)
            try:
                return self.adopt(reply, serial, mode, deadline, alone=alone)
            except StaleSlab:  # replaced once more, before it was reached; that it has ended, the server says
                self._detach_late(reply, serial)
                if monotonic() >= deadline:
                    raise
            except BaseException:
                self._detach_late(reply, serial)
                self.session.flush()
                raise

    def adopt(self, reply: Attached, serial: int, mode: Mode, deadline: float, *, alone: bool = False) -> Attachment:
        """Make the region of a slab that the server has attached, in the client's session of that number."""
        info = reply.slab
        bond = Bond(serial, info.name or f"#{info.id}", alone)
        ticket = Ticket(
            nbytes=info.nbytes,
            slab_id=info.id,
            generation=info.memory_generation,
            writable=mode == "rw" and not info.commits,
            params=self._params(reply),
            renew=partial(self._renew, info, mode, info.memory_generation, bond),
            timeout=self.timeout,
            atomics=info.atomics,
            label=bond.label,
        )
        return Attachment(self, reply, mode, ticket, self._reach(ticket, deadline), bond)

    def _adopt_or_again(self, reply: Attached, serial: int, mode: Mode, deadline: float, *, alone: bool) -> Attachment:
        """Make the region of a slab, of other memory if that was replaced before it was reached."""
        try:
            return self.adopt(reply, serial, mode, deadline, alone=alone)
        except StaleSlab:
            self._detach_late(reply, serial)
            bond = Bond(serial, reply.slab.name or f"#{reply.slab.id}", alone) if alone else None
            return self.attach_again(reply.slab, mode, bond, deadline)

    def _reach(self, ticket: Ticket, deadline: float) -> Region:
        try:
            return self._client.attach(ticket, seconds_left(deadline))
        except ServerLost:  # it may have restarted since it replied: ask again, and it says where it is now
            ticket.params = ticket.renew(deadline - monotonic())
            return self._client.attach(ticket, seconds_left(deadline))

    def _renew(self, info: SlabInfo, mode: Mode, memory: int, bond: Bond, timeout: float) -> Mapping[str, Any]:
        """Attach this memory of the slab again, or with *memory* 0 what it has now; return the new parameters.

        In the session that it was attached in, that is: in another one its handle must find out whether it may go on.
        """
        key = info.id, info.memory_generation
        request = Attach(
            id=info.id,
            generation=info.generation,
            mode=self.holdings.widest(key, mode),
            transport=self.transport,
            memory=memory,
        )
        until = monotonic() + max(timeout, 0.0)
        reply = self.session.call(request, Attached, until, bond=bond._replace(alone=True))
        return self._params(reply)

    def _params(self, reply: Attached) -> dict[str, Any]:
        return {**fill_host(reply.params, self.session.address), "epoch": reply.epoch}

    def _free_late(self, reply: Reply, serial: int) -> None:
        """Free a slab whose allocation nobody waits for any more."""
        self._detach_late(reply, serial)
        assert isinstance(reply, Attached)
        self.session.part(Free(id=reply.slab.id, generation=reply.slab.generation))

    def _detach_late(self, reply: Reply, serial: int) -> None:
        """Take back an attach that nobody waits for any more."""
        assert isinstance(reply, Attached)
        self.holdings.part_detach((reply.slab.id, reply.slab.memory_generation), serial)

    def close(self) -> None:
        """Close every region and the transport's client half; live views keep their memory. Idempotent."""
        self.holdings.close()
        self._client.close()
