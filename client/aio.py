"""The awaitable twins of ``Pool`` and ``Slab``: the same names, awaited.

Control operations are rare and short: they run as blocking calls in a few threads of the pool's own. Bytes
don't: a slab's data methods are those of the transport's awaitable region, in the event loop. What a
cancelled call makes after its caller has gone is given back.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from farpool.client.attachment import Attachment
from farpool.client.deadlines import deadline_after
from farpool.client.pool import DEFAULT_TIMEOUT, PoolHandle, open_session
from farpool.client.session import Session
from farpool.client.signatures import Batch, CompareSwap, FetchAdd, Load, Read, Store, Transfer
from farpool.client.slab import DATA_METHODS, SlabHandle
from farpool.client.transports import AUTO, Selection
from farpool.protocol.errors import InvalidArgument
from farpool.protocol.messages import ServerStat, SlabInfo
from farpool.protocol.units import Lease
from farpool.transports.contract import AwaitableRegion

__all__ = ["Connecting", "Pool", "Slab", "connect"]

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = 4
"""Control operations of one pool that may wait at once; more of them queue."""


def connect(
    url: str | None = None,
    *,
    transport: str = AUTO,
    timeout: float = DEFAULT_TIMEOUT,
    tenant: str | None = None,
) -> Connecting:
    """Open a session as :func:`farpool.connect` does: ``await`` it, or use it in ``async with``."""
    return Connecting(url, transport, timeout, tenant)


class Connecting:
    """A pool to be: ``await`` gives it, ``async with`` gives and closes it."""

    def __init__(self, url: str | None, transport: str, timeout: float, tenant: str | None) -> None:
        self._arguments = (url, transport, timeout, tenant)
        self._pool: Pool | None = None

    def __await__(self) -> Generator[Any, None, Pool]:
        return self._connect().__await__()

    async def __aenter__(self) -> Pool:
        self._pool = await self._connect()
        return self._pool

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._pool is not None
        await self._pool.close()

    async def _connect(self) -> Pool:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="farpool-aio")
        try:
            return Pool(*await _run(threads, _close_opened, open_session, *self._arguments), threads)
        except BaseException:
            threads.shutdown(wait=False)
            raise


class Closing:
    """What ``close`` returns: the work is under way already, and awaiting it waits for its end."""

    def __init__(self, finish: Callable[[], Awaitable[None]]) -> None:
        self._finish = finish

    def __await__(self) -> Generator[Any, None, None]:
        return self._finish().__await__()


class Pool(PoolHandle):
    """One session with one pool server, for one event loop; see :class:`farpool.Pool`."""

    _label = "farpool.aio.Pool"

    def __init__(self, session: Session, selection: Selection, timeout: float, threads: ThreadPoolExecutor) -> None:
        super().__init__(session, selection, timeout)
        self._threads = threads
        self._ending: Future[None] | None = None

    async def allocate(
        self,
        nbytes: int | str,
        *,
        name: str | None = None,
        lease: Lease = "session",
        atomics: str | None = None,
        timeout: float | None = None,
    ) -> Slab:
        """Make a slab and attach it; see :meth:`farpool.Pool.allocate`. If cancelled, no slab is left."""
        return Slab(self, await self._run(_abandon, self._allocate, nbytes, name, lease, atomics, timeout))

    async def open(self, slab: str | int, *, mode: str = "rw", timeout: float | None = None) -> Slab:
        """Attach a slab that exists; see :meth:`farpool.Pool.open`."""
        return Slab(self, await self._run(_close, self._open, slab, mode, timeout))

    async def allocate_many(
        self, sizes: Iterable[int | str], *, lease: Lease = "session", timeout: float | None = None
    ) -> list[Slab]:
        """Make many slabs; see :meth:`farpool.Pool.allocate_many`."""
        made = await self._run(_abandon_all, self._allocate_many, list(sizes), lease, timeout)
        return [Slab(self, attachment) for attachment in made]

    async def free_many(self, slabs: Iterable[Slab], *, timeout: float | None = None) -> None:
        """Free many slabs; see :meth:`farpool.Pool.free_many`."""
        await self._run(_keep, self._free_many, [slab.attachment for slab in slabs], timeout)

    async def stat(self, *, timeout: float | None = None) -> ServerStat:
        """Return the pool's numbers."""
        return await self._run(_keep, self._stat, timeout)

    async def slabs(self, *, timeout: float | None = None) -> list[SlabInfo]:
        """Return what is known of every slab that this tenant may see."""
        return await self._run(_keep, self._slabs, timeout)

    def close(self) -> Closing:
        """End the session; see :meth:`farpool.Pool.close`. Idempotent.

        The session ends even if the result is never awaited; awaiting it waits for the server's answer.
        """
        if self._ending is None:
            self._ending = _start(self._end)
            self._threads.shutdown(wait=False)
        ending = self._ending
        return Closing(lambda: asyncio.shield(asyncio.wrap_future(ending)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        session: Session | None = getattr(self, "_session", None)
        if session is None or session.closed or session.forked or getattr(self, "_ending", self) is not None:
            return
        try:
            warnings.warn(f"{self!r} was never closed; use async with", ResourceWarning, source=self, stacklevel=2)
        finally:
            self._threads.shutdown(wait=False)
            self._end(patience=0.0)

    # What slabs need of their pool --------------------------------------------------------------------------

    def awaitable(self, attachment: Attachment) -> AwaitableRegion:
        """Return the attachment's region for the running loop."""
        return self._selection.client.awaitable(attachment.region, attachment.ticket)

    async def free(self, attachment: Attachment, timeout: float | None) -> None:
        """Free one slab."""
        await self._run(_keep, attachment.free, deadline_after(timeout, self._timeout))

    def flush(self) -> None:
        """Tell the server in a thread what was let go."""
        if self._ending is None:
            self._threads.submit(self._session.flush)

    async def _run(self, undo: Callable[[T], None], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._session.check()
        if self._ending is not None:
            raise InvalidArgument("this pool is closed; connect again")
        return await _run(self._threads, undo, function, *args, **kwargs)


class Slab(SlabHandle):
    """One attached slab whose data methods are awaited; see :class:`farpool.Slab`.

    ``view``, ``array``, ``flush`` and ``invalidate`` wait for nobody, and are plain methods.
    """

    _label = "farpool.aio.Slab"

    __slots__ = {"_twin": "The awaitable region.", **DATA_METHODS}

    read_into: Transfer[Coroutine[Any, Any, int]]
    read: Read[Coroutine[Any, Any, bytes]]
    write: Transfer[Coroutine[Any, Any, int]]
    readv: Batch[Coroutine[Any, Any, int]]
    writev: Batch[Coroutine[Any, Any, int]]
    load: Load[Coroutine[Any, Any, int]]
    store: Store[Coroutine[Any, Any, None]]
    fetch_add: FetchAdd[Coroutine[Any, Any, int]]
    compare_swap: CompareSwap[Coroutine[Any, Any, int]]

    _pool: Pool

    def __init__(self, pool: Pool, attachment: Attachment) -> None:
        super().__init__(pool, attachment)
        self._twin = twin = pool.awaitable(attachment)
        self.read_into = twin.read_into
        self.read = twin.read
        self.write = twin.write
        self.readv = twin.readv
        self.writev = twin.writev
        self.load = twin.load
        self.store = twin.store
        self.fetch_add = twin.fetch_add
        self.compare_swap = twin.compare_swap

    async def free(self, *, timeout: float | None = None) -> None:
        """End the slab; see :meth:`farpool.Slab.free`."""
        await self._pool.free(self.attachment, timeout)
        await self._twin.close()

    def close(self) -> Closing:
        """Let go of the slab without freeing it. Idempotent; done even if the result is never awaited.

        Raises:
            RegionInUse: arrays or views made from it are alive; delete them first.
        """
        if self.attachment.let_go():
            self._pool.flush()
        return Closing(self._twin.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


# Threads ----------------------------------------------------------------------------------------------------


async def _run(
    threads: ThreadPoolExecutor,
    undo: Callable[[T], None],
    function: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Await *function* in a thread; if the caller is cancelled, *undo* what it returns later."""
    future = threads.submit(function, *args, **kwargs)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: _undo_result(done, undo))
        raise


def _undo_result(done: Future[T], undo: Callable[[T], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())


def _start(function: Callable[[], None]) -> Future[None]:
    """Run *function* in a thread of its own."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="farpool-aio-close")
    future = thread.submit(function)
    thread.shutdown(wait=False)
    return future


def _keep(result: object) -> None:
    """Undo nothing."""


def _close(attachment: Attachment) -> None:
    attachment.close()


def _abandon(attachment: Attachment) -> None:
    attachment.abandon()


def _abandon_all(attachments: list[Attachment]) -> None:
    for attachment in attachments:
        attachment.abandon()


def _close_opened(opened: tuple[Session, Selection, float]) -> None:
    session, selection, _ = opened
    selection.client.close()
    session.close()
