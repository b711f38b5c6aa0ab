"""The awaitable twins of rdma regions: one pipelined queue pair for each event loop of a session."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING, Any

from farpool.native.checks import seconds_of
from farpool.native.equal_parts import EqualParts
from farpool.native.rdma_pipeline import SLOT_BYTES, RdmaPipeline
from farpool.native.rdma_region import RdmaRegion
from farpool.protocol.errors import DeadlineExceeded, ServerLost, StaleSlab
from farpool.transports.rdma.binding import Connected
from farpool.transports.renewing import renew
from farpool.transports.threads import in_thread
from farpool.transports.together import together

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["AwaitablePair", "AwaitableRdmaRegion"]

Submit = Callable[[RdmaPipeline, float], "asyncio.Future[int]"]

IDLE_SECONDS = 0.02
"""A queue pair that rested longer is used only while the control plane is up: a dead server answers no packet."""

MOST_PARTS = 64
"""Parts of one operation: half of what the queue holds, so that two are in flight."""


class AwaitablePair:
    """The session's pipelined queue pair on one event loop; opened when first needed, and again when it was lost.

    *open_pipeline(seconds)* makes one; it is called in one of *threads*, since the control plane is synchronous.
    *connected()* tells whether that is up.
    """

    def __init__(
        self, open_pipeline: Callable[[float], Any], connected: Connected, threads: ThreadPoolExecutor
    ) -> None:
        self.threads = threads
        self._open_pipeline = open_pipeline
        self._connected = connected
        self._used = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._pipeline: RdmaPipeline | None = None

    def current(self) -> RdmaPipeline | None:
        """Return the queue pair if it is usable."""
        rested, self._used = time.monotonic() - self._used, time.monotonic()
        if self._pipeline is None or self._pipeline.closed:
            return None
        if rested > IDLE_SECONDS and not self._pipeline.pending and not self._connected():
            self.close()
        return self._pipeline

    async def open(self, deadline: float) -> RdmaPipeline:
        """Return a connected queue pair. Raises ``ServerLost``, ``TransportUnavailable``, ``DeadlineExceeded``."""
        try:
            await asyncio.wait_for(self._opening.acquire(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise _late() from None
        try:
            if (pipeline := self.current()) is not None:
                return pipeline
            pair, staging = await in_thread(self.threads, deadline, _close_opened, self._open_until, deadline)
            self._pipeline = RdmaPipeline(pair, staging, self._loop)
            return self._pipeline
        finally:
            self._opening.release()

    def _open_until(self, deadline: float) -> Any:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _late()
        return self._open_pipeline(left)

    def close(self) -> None:
        """Close the queue pair; what is in flight fails with ``ServerLost``. From another thread the loop does it."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None or self._loop.is_closed():
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop or not self._loop.is_running():
            pipeline.close()
        else:
            self._loop.call_soon_threadsafe(pipeline.close)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("the deadline passed before an RDMA connection was there; raise timeout=")


def _close_opened(opened: Any) -> None:
    pair, _ = opened
    pair.close()


class AwaitableRdmaRegion:
    """The awaitable twin of one region; it shares the region's key, checks and errors."""

    def __init__(self, region: RdmaRegion, pair: AwaitablePair, timeout: float) -> None:
        self._region = region
        self._pair = pair
        self._timeout = timeout

    def _until(self, timeout: float | None) -> float:
        return time.monotonic() + seconds_of(timeout, self._timeout)

    async def _run(self, submit: Submit, deadline: float, *, again: bool) -> int:
        """Carry one operation to its end; *again* says that it may be done twice."""
        for attempt in itertools.count(1):
            future: asyncio.Future[int] | None = None
            try:
                pipeline = self._pair.current()
                if pipeline is None:
                    self._region.check_range(0, 0)  # a closed region opens no connection
                    pipeline = await self._pair.open(deadline)
                if pipeline.incarnation == self._region.incarnation:
                    future = submit(pipeline, deadline)
                    return await future
                if attempt > 1:
                    self._pair.close()  # the region is of this start of the server, and the pair of an earlier one
            except ServerLost as error:
                if future is not None and error.details.get("begun") and not again:
                    raise
            except StaleSlab:
                if attempt > 1 or future is None:
                    raise
            await renew(self._region, deadline, attempt, self._pair.threads)
        raise AssertionError("unreachable")

    async def _move(self, parts: Sequence[tuple[int, Buffer]], timeout: float | None, *, writes: bool) -> int:
        """Move all parts, cut into operations that fit a slot; they are in flight together."""
        deadline = self._until(timeout)
        self._region.check_parts(parts, writes)
        region = self._region
        return await together(
            [
                self._run(_submit(region, batch, writes=writes), deadline, again=not writes)
                for batch in list(_batches(parts))
            ]
        )

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""
        return await self._move([(offset, buffer)], timeout, writes=False)

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""
        self._region.check_range(offset, nbytes)
        result = BytesIO(bytes(nbytes))
        await self.read_into(result.getbuffer(), offset, timeout)
        return result.getvalue()  # its own bytes, not a copy, if nothing borrows them any more

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        return await self._move([(offset, buffer)], timeout, writes=True)

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch and return the bytes read."""
        return await self._move(list(parts), timeout, writes=False)

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch and return the bytes written."""
        return await self._move(list(parts), timeout, writes=True)

    async def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        return await self._move_equal(self._region.describe(offsets, nbytes, out, inward=True), timeout, writes=False)

    async def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        return await self._move_equal(
            self._region.describe(offsets, nbytes, source, inward=False), timeout, writes=True
        )

    async def _move_equal(self, parts: EqualParts, timeout: float | None, *, writes: bool) -> int:
        """Move parts of one size: in one operation of the pipeline's, unless they are larger than its slots."""
        deadline = self._until(timeout)
        if not parts.nbytes:
            return 0
        if parts.part_nbytes > SLOT_BYTES:
            return await self._move(parts.listed(), timeout, writes=writes)
        region = self._region
        return await self._run(lambda line, until: line.move_parts(region, parts, until), deadline, again=not writes)

    async def _word(
        self, code: str, offset: int, length: int, operand: int, timeout: float | None, *, again: bool = False
    ) -> int:
        region = self._region
        return await self._run(
            lambda line, until: line.word(region, code, offset, length, operand, until),
            self._until(timeout),
            again=again,
        )

    async def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned word at *offset*."""
        return await self._word("load", offset, 0, 0, timeout, again=True)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        await self._word("store", offset, 0, value, timeout)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* to the aligned word at *offset* atomically; return the old value."""
        return await self._word("fetch_add", offset, 0, value, timeout)

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        return await self._word("compare_swap", offset, expected, new, timeout)

    async def close(self) -> None:
        """Let go of the slab."""
        self._region.close()


def _submit(region: RdmaRegion, parts: list[tuple[int, Buffer]], *, writes: bool) -> Submit:
    return lambda pipeline, deadline: pipeline.move(region, parts, writes, deadline)


def _batches(parts: Sequence[tuple[int, Buffer]]) -> Iterable[list[tuple[int, Buffer]]]:
    """Cut *parts* into operations of at most a slot's bytes and ``MOST_PARTS`` parts; at least one."""
    batch: list[tuple[int, Buffer]] = []
    room = SLOT_BYTES
    for offset, buffer in parts:
        whole = memoryview(buffer).cast("B")
        for start in range(0, max(whole.nbytes, 1), SLOT_BYTES):
            piece = whole[start : start + SLOT_BYTES]
            if batch and (piece.nbytes > room or len(batch) == MOST_PARTS):
                yield batch
                batch, room = [], SLOT_BYTES
            batch.append((offset + start, piece))
            room -= piece.nbytes
    yield batch
