"""A draft of a slab: what is written to it takes the slab's place as a whole when it is committed, and else nowhere."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from farpool.client.attachment import Attachment
from farpool.client.deadlines import deadline_after
from farpool.client.freeing import discard
from farpool.client.signatures import Batch, CompareSwap, FetchAdd, Gather, Load, Read, Scatter, Store, Transfer
from farpool.client.slab import DATA_METHODS, SlabHandle, keep_error
from farpool.client.tally import TalliedRegion, Tally
from farpool.protocol.errors import FarpoolError, InvalidArgument, RegionInUse
from farpool.protocol.messages import DraftEnd, SlabInfo
from farpool.transports.gathering import gathering_of

__all__ = ["Draft", "DraftHandle"]


class Committer(Protocol):
    """What a draft needs of its pool."""

    def commit_drafts(self, drafts: list[DraftHandle], deadline: float) -> list[SlabInfo]:
        """Commit drafts, all or none."""
        ...

    def goodbye_deadline(self) -> float:
        """Return until when what is closed now may wait for the server."""
        ...


class DraftHandle(SlabHandle):
    """What a draft and its awaitable twin have in common."""

    __slots__ = {
        "base": "What the server said of the slab that the draft is of.",
        "committed": "Whether it was committed, or discarded: there is nothing left to do.",
        "tally": "The checksums of what was written, None if none are wanted.",
    }

    _label = "farpool.Draft"

    def __init__(self, pool: object, attachment: Attachment, base: SlabInfo, *, checksum: bool) -> None:
        super().__init__(pool, attachment)
        self.base = base
        self.committed = False
        self.tally = Tally(attachment.info.nbytes) if checksum else None
        if self.tally is not None:
            self.view = TalliedRegion(attachment, self.tally).view

    def withdraw(self) -> DraftEnd:
        """Let go of the draft's memory, and return what the server must know to commit it; ``RegionInUse``."""
        if self.committed:
            raise InvalidArgument("this draft was committed or discarded already; reserve another")
        attachment = self.attachment
        detached = attachment.transport if attachment.withdraw() else ""
        known, digest = (b"", 0) if self.tally is None else self.tally.summary()
        return DraftEnd(
            id=self.id,
            generation=self.generation,
            detached=detached,
            checksum=self.tally is not None,
            known=known,
            digest=digest,
        )

    def discard_now(self, deadline: float) -> None:
        """End the draft unless it was committed; one that has ended already is no error. ``RegionInUse``.

        What the server has not confirmed by *deadline* it is told with the next request.
        """
        if self.committed:
            return
        self.committed = True
        try:
            discard(self.attachment, deadline)
        except RegionInUse:
            self.committed = False
            raise
        except FarpoolError:
            pass  # it ends with its session


class Draft(DraftHandle):
    """Memory to write the next version of a slab to. Thread-safe; a ``with`` block discards it at its end.

    It has a slab's data methods. Nobody else sees what is written before ``commit``; after that readers of the slab see
    all of it. A draft that is not committed ends with its block, its session or its slab, and changes nothing.
    """

    __slots__ = DATA_METHODS

    read_into: Transfer[int]
    read: Read[bytes]
    write: Transfer[int]
    readv: Batch[int]
    writev: Batch[int]
    gather: Gather[int]
    scatter: Scatter[int]
    load: Load[int]
    store: Store[None]
    fetch_add: FetchAdd[int]
    compare_swap: CompareSwap[int]

    _pool: Committer

    def __init__(self, pool: Committer, attachment: Attachment, base: SlabInfo, *, checksum: bool) -> None:
        super().__init__(pool, attachment, base, checksum=checksum)
        region = attachment.region
        gathering = gathering_of(region, attachment.ticket.label)
        tallied = None if self.tally is None else TalliedRegion(attachment, self.tally)
        writer = tallied or region
        self.read_into = region.read_into
        self.read = region.read
        self.readv = region.readv
        self.gather = gathering.gather
        self.load = region.load
        self.write = writer.write
        self.writev = writer.writev
        self.scatter = (tallied or gathering).scatter
        self.store = writer.store
        self.fetch_add = writer.fetch_add
        self.compare_swap = writer.compare_swap

    def commit(self, *, timeout: float | None = None) -> None:
        """Let the draft take the place of the slab's bytes; readers see all of them, or still the old.

        Raises:
            RegionInUse: arrays or views of the draft are alive; delete them, and commit again.
            StaleSlab: the slab, or the draft, has ended; nothing was committed.
            CorruptData: the server has other bytes than were written here; nothing was committed.
            SlabBusy: another session has the slab for itself.
            ServerLost: the server went away meanwhile; whether the draft was committed is unknown.
        """
        self._pool.commit_drafts([self], deadline_after(timeout, self.attachment.ticket.timeout))

    def close(self) -> None:
        """Discard the draft unless it was committed. Idempotent.

        Waits at most 1 s for the server, or the pool's ``timeout`` if that is less.

        Raises:
            RegionInUse: arrays or views made from it are alive; delete them first.
        """
        self.discard_now(self._pool.goodbye_deadline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with keep_error(error):
            self.close()
