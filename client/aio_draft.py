"""The awaitable twin of a draft."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from farpool.client.attachment import Attachment
from farpool.client.draft import DraftHandle
from farpool.client.opening import Closing, Opening
from farpool.client.signatures import Batch, CompareSwap, FetchAdd, Gather, Load, Read, Scatter, Store, Transfer
from farpool.client.slab import DATA_METHODS, keep_error
from farpool.client.tally import Tally
from farpool.native.equal_parts import list_parts
from farpool.protocol.messages import SlabInfo
from farpool.transports.contract import AwaitableRegion
from farpool.transports.gathering import awaitable_gathering_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Draft", "Reserving"]


class Pool(Protocol):
    """What a draft needs of its pool."""

    def awaitable(self, attachment: Attachment) -> AwaitableRegion:
        """Return the attachment's region for the running loop."""
        ...

    async def commit(self, drafts: Iterable[Draft], *, timeout: float | None = None) -> None:
        """Commit drafts, all or none."""
        ...

    def discard(self, draft: Draft) -> Closing:
        """Begin to end a draft that was not committed."""
        ...


class Draft(DraftHandle):
    """A draft whose data methods are awaited; see :class:`farpool.Draft`."""

    _label = "farpool.aio.Draft"

    __slots__ = DATA_METHODS

    read_into: Transfer[Coroutine[Any, Any, int]]
    read: Read[Coroutine[Any, Any, bytes]]
    write: Transfer[Coroutine[Any, Any, int]]
    readv: Batch[Coroutine[Any, Any, int]]
    writev: Batch[Coroutine[Any, Any, int]]
    gather: Gather[Coroutine[Any, Any, int]]
    scatter: Scatter[Coroutine[Any, Any, int]]
    load: Load[Coroutine[Any, Any, int]]
    store: Store[Coroutine[Any, Any, None]]
    fetch_add: FetchAdd[Coroutine[Any, Any, int]]
    compare_swap: CompareSwap[Coroutine[Any, Any, int]]

    _pool: Pool

    def __init__(self, pool: Pool, attachment: Attachment, base: SlabInfo, *, checksum: bool) -> None:
        super().__init__(pool, attachment, base, checksum=checksum)
        twin = pool.awaitable(attachment)
        gathering = awaitable_gathering_of(twin, attachment.info.nbytes, attachment.ticket.label)
        tallied = None if self.tally is None else AwaitableTallied(twin, self.tally, attachment)
        writer = tallied or twin
        self.read_into = twin.read_into
        self.read = twin.read
        self.readv = twin.readv
        self.gather = gathering.gather
        self.load = twin.load
        self.write = writer.write
        self.writev = writer.writev
        self.scatter = (tallied or gathering).scatter
        self.store = writer.store
        self.fetch_add = writer.fetch_add
        self.compare_swap = writer.compare_swap

    async def commit(self, *, timeout: float | None = None) -> None:
        """Let the draft take the place of the slab's bytes; see :meth:`farpool.Draft.commit`.

        If cancelled, whether it was committed is unknown.
        """
        await self._pool.commit([self], timeout=timeout)

    def close(self) -> Closing:
        """Discard the draft unless it was committed. Idempotent; done even if the result is never awaited.

        Awaiting it raises ``RegionInUse`` if arrays or views made from it are alive.
        """
        return self._pool.discard(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with keep_error(error):
            await self.close()


class Reserving(Opening[Draft]):
    """A draft to be: ``await`` gives it, ``async with`` gives it and discards what was not committed."""

    def __init__(self, reserve: Callable[[], Coroutine[Any, Any, Draft]]) -> None:
        self._reserve = reserve

    async def _open(self) -> Draft:
        return await self._reserve()


class AwaitableTallied:
    """A draft's awaitable region with its writes noted; what it does not have is the region's own."""

    def __init__(self, twin: AwaitableRegion, tally: Tally, attachment: Attachment) -> None:
        self._twin = twin
        self._tally = tally
        self._nbytes = attachment.info.nbytes
        self._label = attachment.ticket.label

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the draft and return the bytes written."""
        with self._tally.noting():
            written = await self._twin.write(buffer, offset, timeout)
            self._tally.write(buffer, offset)
        return written

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch and return the bytes written."""
        listed = list(parts)
        with self._tally.noting():
            written = await self._twin.writev(listed, timeout)
            for offset, buffer in listed:
                self._tally.write(buffer, offset)
        return written

    async def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        gathering = awaitable_gathering_of(self._twin, self._nbytes, self._label)
        with self._tally.noting():
            written = await gathering.scatter(offsets, nbytes, source, timeout)
            for offset, part in list_parts(offsets, nbytes, source, self._nbytes, self._label, inward=False):
                self._tally.write(part, offset)
        return written

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        with self._tally.noting():
            await self._twin.store(offset, value, timeout)
            self._tally.touch(offset)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* to the aligned word at *offset*; return the old value."""
        with self._tally.noting():
            old = await self._twin.fetch_add(offset, value, timeout)
            self._tally.touch(offset)
        return old

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        with self._tally.noting():
            old = await self._twin.compare_swap(offset, expected, new, timeout)
            self._tally.touch(offset)
        return old
