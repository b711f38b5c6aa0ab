"""The awaitable twins of ``Pool`` and ``Slab``: the same names, awaited.

Control operations are rare and short: they run as blocking calls in a few threads of the pool's own. Bytes
don't: a slab's data methods are those of the transport's awaitable region, in the event loop. What a
cancelled call makes after its caller has gone is given back.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeVar, TypeVarTuple, Unpack

from farpool.client import freeing, grants
from farpool.client.aio_draft import Draft, Reserving
from farpool.client.aio_versions import AwaitableVersions
from farpool.client.attachment import Attachment
from farpool.client.closer import Closer, await_until
from farpool.client.deadlines import deadline_after
from farpool.client.encryption import Tls
from farpool.client.opening import Closing, Opening
from farpool.client.pool import DEFAULT_TIMEOUT, PoolHandle, open_session
from farpool.client.session import Session
from farpool.client.signatures import Batch, CompareSwap, FetchAdd, Gather, Load, Read, Scatter, Store, Transfer
from farpool.client.slab import DATA_METHODS, SlabHandle, keep_error
from farpool.client.transports import AUTO, Selection
from farpool.client.versions import BriefRegion, Versions
from farpool.client.waiting import Waiter, notify
from farpool.protocol.errors import InvalidArgument, StaleSlab
from farpool.protocol.grant_messages import GrantInfo
from farpool.protocol.messages import Quarantined, ServerStat, SlabInfo
from farpool.protocol.units import Lease
from farpool.transports.contract import AwaitableRegion, Region
from farpool.transports.threads import MOST_THREADS, in_thread, keep

__all__ = ["Connecting", "Draft", "Pool", "Slab", "connect"]

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

WAITS: Final = 64
"""Waits for words that have a thread at once; with more of them they take turns of a second."""


def connect(
    url: str | None = None,
    *,
    transport: str = AUTO,
    timeout: float = DEFAULT_TIMEOUT,
    tenant: str | None = None,
    token: str | None = None,
    tls: Tls | None = None,
) -> Connecting:
    """Open a session as :func:`farpool.connect` does: ``await`` it, or use it in ``async with``."""
    return Connecting(url, transport, timeout, tenant, token, tls)


class Connecting(Opening["Pool"]):
    """A pool to be: ``await`` gives it, ``async with`` gives and closes it."""

    def __init__(
        self,
        url: str | None,
        transport: str,
        timeout: float,
        tenant: str | None,
        token: str | None,
        tls: Tls | None,
    ) -> None:
        self._arguments = (url, transport, timeout, tenant, token, tls)

    async def _open(self) -> Pool:
        deadline = deadline_after(self._arguments[2], DEFAULT_TIMEOUT)
        threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="farpool-aio")
        closer = Closer()
        try:
            opened = await in_thread(threads, deadline, _close_opened, open_session, *self._arguments)
            return Pool(*opened, threads, closer)
        except BaseException:
            threads.shutdown(wait=False)
            closer.stop()
            raise


class Pool(PoolHandle):
    """One session with one pool server, for one event loop; see :class:`farpool.Pool`."""

    _label = "farpool.aio.Pool"

    def __init__(
        self, session: Session, selection: Selection, timeout: float, threads: ThreadPoolExecutor, closer: Closer
    ) -> None:
        super().__init__(session, selection, timeout)
        self._threads = threads
        self._closer = closer
        self._waits: ThreadPoolExecutor | None = None
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
        made = await self._run(self._deadline(timeout), _abandon, self._allocate, nbytes, name, lease, atomics)
        return Slab(self, made)

    async def open(
        self,
        slab: str | int,
        *,
        mode: str = "rw",
        exclusive: bool = False,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> Slab:
        """Attach a slab that exists; see :meth:`farpool.Pool.open`."""
        opened = await self._run(self._deadline(timeout), _undo, self._open, slab, mode, exclusive, tenant)
        return Slab(self, opened)

    def reserve(
        self, slab: Slab, *, copy: bool = False, checksum: bool = True, timeout: float | None = None
    ) -> Reserving:
        """Make a draft of *slab*: what :meth:`farpool.aio.Slab.reserve` does. If cancelled, no draft is left."""

        async def reserve() -> Draft:
            made = await self._run(self._deadline(timeout), _abandon, self._reserve, slab, copy)
            return Draft(self, made, slab.info, checksum=checksum)

        return Reserving(reserve)

    async def commit(self, drafts: Iterable[Draft], *, timeout: float | None = None) -> None:
        """Let drafts take the place of their slabs' bytes, all or none; see :meth:`farpool.Pool.commit`."""
        await self._run(self._deadline(timeout), keep, self.commit_drafts, list(drafts))

    async def allocate_many(
        self, sizes: Iterable[int | str], *, lease: Lease = "session", timeout: float | None = None
    ) -> list[Slab]:
        """Make many slabs; see :meth:`farpool.Pool.allocate_many`."""
        undo = partial(freeing.abandon, self._attachments)
        made = await self._run(self._deadline(timeout), undo, self._allocate_many, list(sizes), lease)
        return [Slab(self, attachment) for attachment in made]

    async def free_many(self, slabs: Iterable[Slab], *, timeout: float | None = None) -> None:
        """Free many slabs; see :meth:`farpool.Pool.free_many`."""
        await self._run(self._deadline(timeout), keep, self._free_many, list(slabs))

    async def stat(self, *, timeout: float | None = None) -> ServerStat:
        """Return the pool's numbers."""
        return await self._run(self._deadline(timeout), keep, self._stat)

    async def slabs(self, *, timeout: float | None = None) -> list[SlabInfo]:
        """Return what is known of every slab that this tenant may see."""
        return await self._run(self._deadline(timeout), keep, self._slabs)

    async def release_host(self, host: str, *, timeout: float | None = None) -> Quarantined:
        """Tell the server that nothing on *host* maps memory any more; see :meth:`farpool.Pool.release_host`."""
        return await self._run(self._deadline(timeout), keep, self._release_host, host)

    def close(self) -> Closing:
        """End the session; see :meth:`farpool.Pool.close`. Idempotent.

        The session ends even if the result is never awaited; awaiting it waits for the server's answer.
        """
        ending = self._ending
        if ending is None:
            ending = self._ending = self._begin_end()
        return Closing(lambda: asyncio.shield(asyncio.wrap_future(ending)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with keep_error(error):
            await self.close()

    def __del__(self) -> None:
        session: Session | None = getattr(self, "_session", None)
        if session is None or session.closed or session.forked or getattr(self, "_ending", self) is not None:
            return
        try:
            warnings.warn(f"{self!r} was never closed; use async with", ResourceWarning, source=self, stacklevel=2)
        finally:
            self._begin_end()

    def _begin_end(self) -> Future[None]:
        ending = self._closer.do(self._dismiss_threads_and_end, partial(self._end, patience=0.0))
        self._closer.stop()
        return ending

    def _dismiss_threads_and_end(self) -> None:
        self._threads.shutdown(wait=False)
        if self._waits is not None:
            self._waits.shutdown(wait=False)
        self._end()

    # What slabs need of their pool --------------------------------------------------------------------------

    def awaitable(self, attachment: Attachment) -> AwaitableRegion:
        """Return the attachment's region for the running loop."""
        return self._selection.client.awaitable(attachment.region, attachment.ticket)

    async def free(self, attachment: Attachment, timeout: float | None) -> None:
        """Free one slab."""
        await self._run(self._deadline(timeout), keep, freeing.free, attachment)

    async def ask(
        self, question: Callable[[Unpack[Arguments], float], T], *arguments: *Arguments, timeout: float | None
    ) -> T:
        """Ask the server about one slab."""
        return await self._run(self._deadline(timeout), keep, question, *arguments)

    async def wait(self, waiter: Waiter, deadline: float) -> int:
        """Wait for a word, a second of a thread at a time, so that waits take turns where there are many."""
        while True:
            self._check()
            if self._waits is None:
                self._waits = ThreadPoolExecutor(WAITS, thread_name_prefix="farpool-aio-wait")
            value = await in_thread(self._waits, deadline, keep, waiter.look, late=waiter.late)
            if value is not None:
                return value

    async def notify(self, slab: Slab, offset: int, timeout: float | None) -> None:
        """Let whoever waits for a word look at it now."""
        await self._run(self._deadline(timeout), keep, notify, slab.attachment, slab.versions, offset)

    async def renew(self, versions: Versions, seen: Attachment, error: StaleSlab, deadline: float) -> Attachment:
        """Attach what has replaced the memory of a slab, in a thread."""
        return await self._run(deadline, keep, versions.renew, seen, error)

    def discard(self, draft: Draft) -> Closing:
        """Begin to end a draft that was not committed; awaiting it takes 1 s at most, or a call's time if less."""
        deadline = self.goodbye_deadline()
        if self._ending is not None or self._session.closed or draft.committed:
            return Closing(partial(asyncio.sleep, 0))
        ended = self._closer.do(
            partial(self._discard, draft, deadline), partial(draft.discard_now, monotonic()), self._threads
        )
        return Closing(partial(await_until, deadline, ended))

    def _discard(self, draft: Draft, deadline: float) -> None:
        draft.discard_now(deadline)
        self._session.flush()  # what came too late for an answer

    def flush(self) -> None:
        """Tell the server in a thread what was let go; where none is to be had, with the next request."""
        if self._ending is None:
            self._closer.do(self._session.flush, _nothing, self._threads)

    def _check(self) -> None:
        self._session.check()
        if self._ending is not None:
            raise InvalidArgument("this pool is closed; connect again")

    async def _run(
        self,
        deadline: float,
        undo: Callable[[T], None],
        function: Callable[[Unpack[Arguments], float], T],
        *arguments: *Arguments,
    ) -> T:
        """Await *function* of the arguments and the deadline, which counts from now, also while it queues."""
        self._check()
        return await in_thread(self._threads, deadline, undo, function, *arguments, deadline)


class Slab(SlabHandle):
    """One attached slab whose data methods are awaited; see :class:`farpool.Slab`.

    ``view``, ``array``, ``map``, ``flush`` and ``invalidate`` are plain methods. They wait for nobody, but where the
    slab's memory was replaced since it was last used: for that they hold the event loop for 0.25 s at most, or the
    pool's ``timeout`` if that is less. What ``view``, ``array`` and ``map`` show of a slab that was ever committed they
    verify, in the loop: a crc32c of all of it, at some GB a second. Show parts of a large slab, or do it in a thread.
    """

    _label = "farpool.aio.Slab"

    __slots__ = {"_twin": "The awaitable region.", **DATA_METHODS}

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

    def __init__(self, pool: Pool, attachment: Attachment) -> None:
        super().__init__(pool, attachment)
        self._twin = twin = AwaitableVersions(pool, self.versions, attachment)
        self.read_into = twin.read_into
        self.read = twin.read
        self.write = twin.write
        self.readv = twin.readv
        self.writev = twin.writev
        self.gather = twin.gather
        self.scatter = twin.scatter
        self.load = twin.load
        self.store = twin.store
        self.fetch_add = twin.fetch_add
        self.compare_swap = twin.compare_swap

    async def wait(self, offset: int, expected: int, timeout: float | None = None) -> int:
        """Wait until a word has changed; see :meth:`farpool.Slab.wait`."""
        deadline = deadline_after(timeout, self.attachment.ticket.timeout)
        return await self._pool.wait(Waiter(self.attachment, self.versions, offset, expected, deadline), deadline)

    async def notify(self, offset: int, timeout: float | None = None) -> None:
        """Let whoever waits for a word look at it now; see :meth:`farpool.Slab.notify`."""
        await self._pool.notify(self, offset, timeout)

    def _region(self) -> Region:
        self.versions.current = self._attachment
        return BriefRegion(self.versions)

    def reserve(self, *, copy: bool = False, checksum: bool = True, timeout: float | None = None) -> Reserving:
        """Make a draft of the slab: ``await`` it, or use it in ``async with``; see :meth:`farpool.Slab.reserve`."""
        return self._pool.reserve(self, copy=copy, checksum=checksum, timeout=timeout)

    async def free(self, *, timeout: float | None = None) -> None:
        """End the slab; see :meth:`farpool.Slab.free`."""
        await self._pool.free(self.attachment, timeout)
        await self._twin.close()

    async def grant(
        self, tenant: str, *, mode: str = "r", expires: float | None = None, timeout: float | None = None
    ) -> None:
        """Let another tenant attach the slab; see :meth:`farpool.Slab.grant`."""
        await self._pool.ask(grants.grant, self.attachment, tenant, mode, expires, timeout=timeout)

    async def revoke(self, tenant: str, *, timeout: float | None = None) -> None:
        """Take the slab from another tenant; see :meth:`farpool.Slab.revoke`."""
        await self._pool.ask(grants.revoke, self.attachment, tenant, timeout=timeout)

    async def grants(self, *, timeout: float | None = None) -> Sequence[GrantInfo]:
        """Return the slab's grants; see :meth:`farpool.Slab.grants`."""
        return await self._pool.ask(grants.list_grants, self.attachment, timeout=timeout)

    def close(self) -> Closing:
        """Let go of the slab without freeing it. Idempotent; done even if the result is never awaited.

        Raises:
            RegionInUse: arrays or views made from it are alive; delete them first.
        """
        if self.versions.let_go():
            self._pool.flush()
        return Closing(self._twin.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with keep_error(error):
            await self.close()


def _nothing() -> None:
    """Leave it to the next request."""


def _undo(attachment: Attachment) -> None:
    attachment.undo()


def _abandon(attachment: Attachment) -> None:
    freeing.abandon(attachment.owner, [attachment])


def _close_opened(opened: tuple[Session, Selection, float]) -> None:
    session, selection, _ = opened
    selection.client.close()
    session.close()
