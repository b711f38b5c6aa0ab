"""The awaitable twin of :mod:`farpool.client.versions`, for every slab of ``farpool.aio``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from io import BytesIO
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from farpool.client.attachment import Attachment
from farpool.client.deadlines import deadline_after
from farpool.client.verified import as_target, in_order, plan
from farpool.client.versions import Versions, refuse_write
from farpool.native.equal_parts import list_parts
from farpool.protocol.errors import StaleSlab
from farpool.transports.contract import AwaitableGathering, AwaitableRegion
from farpool.transports.gathering import awaitable_gathering_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AwaitableVersions"]

T = TypeVar("T")

Work = Callable[[Attachment, AwaitableRegion, float], Awaitable[T]]


class TwinMaker(Protocol):
    """What is needed of the pool."""

    def awaitable(self, attachment: Attachment) -> AwaitableRegion:
        """Return the attachment's region for the running loop."""
        ...

    async def renew(self, versions: Versions, seen: Attachment, error: StaleSlab, deadline: float) -> Attachment:
        """Call ``versions.renew`` in a thread."""
        ...


class AwaitableVersions:
    """The data methods of a slab whose memory may be replaced, bound to the running loop."""

    def __init__(self, pool: TwinMaker, versions: Versions, attachment: Attachment) -> None:
        self._pool = pool
        self._versions = versions
        self._take(attachment)

    def _take(self, attachment: Attachment) -> None:
        self._current = attachment
        self._twin = self._pool.awaitable(attachment)
        self._plain = None if attachment.info.commits else self._twin
        """The twin, where nothing stands between it and the caller."""

    def _gathering(self, twin: AwaitableRegion) -> AwaitableGathering:
        return awaitable_gathering_of(twin, self._versions.info.nbytes, self._current.ticket.label)

    async def _follow(self, seen: Attachment, error: StaleSlab, deadline: float) -> None:
        self._versions.check(error)
        fresh = await self._pool.renew(self._versions, seen, error, deadline)
        self._versions.check(error)  # the handle may have been closed meanwhile
        if fresh is not self._current:
            self._take(fresh)

    async def _run(self, error: StaleSlab | None, work: Work[T], timeout: float | None) -> T:
        """Carry *work* out on one version of the slab: whole, and again if that ends meanwhile, as *error* says."""
        deadline = deadline_after(timeout, self._versions.owner.timeout)
        current = self._current
        while True:
            if error is not None:
                await self._follow(current, error, deadline)
            current = self._current
            try:
                return await work(current, self._twin, max(deadline - monotonic(), 1e-6))
            except StaleSlab as stale:
                error = stale

    # Reading ------------------------------------------------------------------------------------------------

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""
        error = None
        if self._plain is not None:
            try:
                return await self._plain.read_into(buffer, offset, timeout)
            except StaleSlab as stale:
                error = stale

        async def read(current: Attachment, twin: AwaitableRegion, seconds: float) -> int:
            part = as_target(buffer, offset, current.info.nbytes)
            if part is None or current.checksums is None:
                return await twin.read_into(buffer, offset, seconds)
            return await _read_verified(current, twin, [part], seconds)

        return await self._run(error, read, timeout)

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""
        error = None
        if self._plain is not None:
            try:
                return await self._plain.read(nbytes, offset, timeout)
            except StaleSlab as stale:
                error = stale

        async def read(current: Attachment, twin: AwaitableRegion, seconds: float) -> bytes:
            if current.checksums is None or not 0 < nbytes <= current.info.nbytes:
                return await twin.read(nbytes, offset, seconds)
            result = BytesIO(bytes(nbytes))
            part = as_target(result.getbuffer(), offset, current.info.nbytes)
            if part is None:
                return await twin.read(nbytes, offset, seconds)
            await _read_verified(current, twin, [part], seconds)
            del part
            return result.getvalue()

        return await self._run(error, read, timeout)

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch; every range is checked before a byte moves. Return the bytes read."""
        listed = list(parts)
        error = None
        if self._plain is not None:
            try:
                return await self._plain.readv(listed, timeout)
            except StaleSlab as stale:
                error = stale

        async def read(current: Attachment, twin: AwaitableRegion, seconds: float) -> int:
            if current.checksums is None:
                return await twin.readv(listed, seconds)
            wanted: list[tuple[int, memoryview]] = []
            for offset, buffer in listed:
                target = as_target(buffer, offset, current.info.nbytes)
                if target is None:
                    await twin.readv([(offset, buffer)], seconds)  # says what is wrong with it, unless it is just empty
                else:
                    wanted.append(target)
            return await _read_verified(current, twin, wanted, seconds)

        return await self._run(error, read, timeout)

    async def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        error = None
        if self._plain is not None:
            try:
                return await self._gathering(self._plain).gather(offsets, nbytes, out, timeout)
            except StaleSlab as stale:
                error = stale

        async def read(current: Attachment, twin: AwaitableRegion, seconds: float) -> int:
            label = current.ticket.label
            if current.checksums is None:
                return await self._gathering(twin).gather(offsets, nbytes, out, seconds)
            parts = list_parts(offsets, nbytes, out, current.info.nbytes, label, inward=True)
            if not parts or not nbytes:
                return await twin.readv([], seconds)
            return await _read_verified(current, twin, in_order(parts), seconds)

        return await self._run(error, read, timeout)

    async def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned unsigned 8-byte little-endian word at *offset*."""
        error = None
        if self._plain is not None:
            try:
                return await self._plain.load(offset, timeout)
            except StaleSlab as stale:
                error = stale

        async def load(current: Attachment, twin: AwaitableRegion, seconds: float) -> int:
            word = bytearray(8)
            part = as_target(word, offset, current.info.nbytes)
            if current.checksums is None or part is None or part[0] % 8:
                return await twin.load(offset, seconds)
            await _read_verified(current, twin, [part], seconds)
            return int.from_bytes(word, "little")

        return await self._run(error, load, timeout)

    # Writing ------------------------------------------------------------------------------------------------

    async def _write(self, write: Callable[[AwaitableRegion, float | None], Awaitable[T]], timeout: float | None) -> T:
        error = None
        if self._plain is not None:
            try:
                return await write(self._plain, timeout)
            except StaleSlab as stale:
                error = stale

        async def work(current: Attachment, twin: AwaitableRegion, seconds: float) -> T:
            refuse_write(current)
            return await write(twin, seconds)

        return await self._run(error, work, timeout)

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        return await self._write(lambda twin, seconds: twin.write(buffer, offset, seconds), timeout)

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch and return the bytes written."""
        listed = list(parts)
        return await self._write(lambda twin, seconds: twin.writev(listed, seconds), timeout)

    async def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        return await self._write(
            lambda twin, seconds: self._gathering(twin).scatter(offsets, nbytes, source, seconds), timeout
        )

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        await self._write(lambda twin, seconds: twin.store(offset, value, seconds), timeout)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* (modulo 2**64) to the aligned word at *offset* atomically; return the old value."""
        return await self._write(lambda twin, seconds: twin.fetch_add(offset, value, seconds), timeout)

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        return await self._write(lambda twin, seconds: twin.compare_swap(offset, expected, new, seconds), timeout)

    async def close(self) -> None:
        """Let go of the slab."""
        await self._twin.close()


async def _read_verified(
    current: Attachment, twin: AwaitableRegion, parts: list[tuple[int, memoryview]], seconds: float
) -> int:
    assert current.checksums is not None
    deadline = monotonic() + seconds
    for batch in plan(parts, current.checksums):
        left = max(deadline - monotonic(), 1e-6)
        if len(batch) == 1:
            await twin.read_into(batch[0].target, batch[0].offset, left)
        else:
            await twin.readv([(piece.offset, piece.target) for piece in batch], left)
        for piece in batch:
            piece.present(current.checksums)
    return sum(view.nbytes for _, view in parts)
