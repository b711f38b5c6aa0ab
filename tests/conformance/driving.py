"""One face for both APIs, so that each behaviour is written once and tested on ``farpool`` and ``farpool.aio``.

:class:`farpool.Pool` and :class:`farpool.Slab` have this face by themselves; the ``Awaited`` classes give it to
their awaitable twins, by running the event loop until each call is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import farpool.aio
from farpool.protocol.grant_messages import GrantInfo
from farpool.protocol.messages import ServerStat, SlabInfo
from farpool.protocol.units import Lease

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray
    from typing_extensions import Buffer

__all__ = ["AnyDraft", "AnyPool", "AnySlab", "AwaitedDraft", "AwaitedPool", "AwaitedSlab"]

T = TypeVar("T")


class AnySlab(Protocol):
    """What every slab can do, whatever its transport."""

    @property
    def id(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def name(self) -> str | None: ...
    @property
    def lease(self) -> Lease: ...
    @property
    def mode(self) -> str: ...
    @property
    def transport(self) -> str: ...
    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...
    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes: ...
    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...
    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...
    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...
    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int: ...
    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int: ...
    def load(self, offset: int, timeout: float | None = None) -> int: ...
    def store(self, offset: int, value: int, timeout: float | None = None) -> None: ...
    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int: ...
    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int: ...
    def wait(self, offset: int, expected: int, timeout: float | None = None) -> int: ...
    def notify(self, offset: int, timeout: float | None = None) -> None: ...
    def grant(
        self, tenant: str, *, mode: str = "r", expires: float | None = None, timeout: float | None = None
    ) -> None: ...
    def revoke(self, tenant: str, *, timeout: float | None = None) -> None: ...
    def grants(self, *, timeout: float | None = None) -> Sequence[GrantInfo]: ...
    def flush(self, offset: int = 0, nbytes: int | None = None) -> None: ...
    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None: ...
    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview: ...
    def array(self, dtype: DTypeLike, shape: int | tuple[int, ...], offset: int = 0) -> NDArray[Any]: ...
    def free(self, *, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...
    def reserve(self, *, copy: bool = False, checksum: bool = True, timeout: float | None = None) -> AnyDraft: ...
    @property
    def info(self) -> SlabInfo: ...
    @property
    def exclusive(self) -> bool: ...


class AnyDraft(Protocol):
    """What every draft can do beside what its region can."""

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes: ...
    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...
    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...
    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int: ...
    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int: ...
    def store(self, offset: int, value: int, timeout: float | None = None) -> None: ...
    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview: ...
    def commit(self, *, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...


class AnyPool(Protocol):
    """What every pool can do."""

    @property
    def transport(self) -> str: ...
    @property
    def session_id(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def allocate(
        self, nbytes: int | str, *, name: str | None = None, lease: Lease = "session", timeout: float | None = None
    ) -> AnySlab: ...
    def open(
        self,
        slab: str | int,
        *,
        mode: str = "rw",
        exclusive: bool = False,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> AnySlab: ...
    def stat(self, *, timeout: float | None = None) -> ServerStat: ...
    def slabs(self, *, timeout: float | None = None) -> list[SlabInfo]: ...
    def commit(self, drafts: Iterable[Any], *, timeout: float | None = None) -> None: ...
    def close(self) -> None: ...


class AwaitedPool:
    """A :class:`farpool.aio.Pool` whose calls are awaited at once."""

    def __init__(self, url: str, transport: str, timeout: float, tenant: str | None = None) -> None:
        self._runner = asyncio.Runner()
        try:
            connecting = farpool.aio.connect(url, transport=transport, timeout=timeout, tenant=tenant)
            self._pool = self.wait(lambda: connecting)
        except BaseException:
            self._runner.close()
            raise

    def wait(self, call: Callable[[], Awaitable[T]]) -> T:
        async def awaited() -> T:
            return await call()

        return self._runner.run(awaited())

    @property
    def transport(self) -> str:
        return self._pool.transport

    @property
    def session_id(self) -> int:
        return self._pool.session_id

    @property
    def epoch(self) -> int:
        return self._pool.epoch

    @property
    def closed(self) -> bool:
        return self._pool.closed

    def allocate(
        self, nbytes: int | str, *, name: str | None = None, lease: Lease = "session", timeout: float | None = None
    ) -> AwaitedSlab:
        pool = self._pool
        return AwaitedSlab(self, self.wait(lambda: pool.allocate(nbytes, name=name, lease=lease, timeout=timeout)))

    def open(
        self,
        slab: str | int,
        *,
        mode: str = "rw",
        exclusive: bool = False,
        tenant: str | None = None,
        timeout: float | None = None,
    ) -> AwaitedSlab:
        options: dict[str, Any] = {"mode": mode, "exclusive": exclusive, "tenant": tenant, "timeout": timeout}
        return AwaitedSlab(self, self.wait(lambda: self._pool.open(slab, **options)))

    def commit(self, drafts: Iterable[AnyDraft], *, timeout: float | None = None) -> None:
        awaited = [draft.draft for draft in drafts if isinstance(draft, AwaitedDraft)]
        self.wait(lambda: self._pool.commit(awaited, timeout=timeout))

    def stat(self, *, timeout: float | None = None) -> ServerStat:
        return self.wait(lambda: self._pool.stat(timeout=timeout))

    def slabs(self, *, timeout: float | None = None) -> list[SlabInfo]:
        return self.wait(lambda: self._pool.slabs(timeout=timeout))

    def close(self) -> None:
        self.wait(self._pool.close)

    def end(self) -> None:
        """Close the pool and the event loop behind it: no call after this one."""
        self.close()
        self._runner.close()


class AwaitedSlab:
    """A :class:`farpool.aio.Slab` whose calls are awaited at once."""

    def __init__(self, pool: AwaitedPool, slab: farpool.aio.Slab) -> None:
        self._pool = pool
        self._wait = pool.wait
        self._slab = slab
        self.flush = slab.flush
        self.invalidate = slab.invalidate
        self.view = slab.view
        self.array = slab.array

    @property
    def id(self) -> int:
        return self._slab.id

    @property
    def generation(self) -> int:
        return self._slab.generation

    @property
    def nbytes(self) -> int:
        return self._slab.nbytes

    @property
    def name(self) -> str | None:
        return self._slab.name

    @property
    def lease(self) -> Lease:
        return self._slab.lease

    @property
    def mode(self) -> str:
        return self._slab.mode

    @property
    def transport(self) -> str:
        return self._slab.transport

    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.read_into(buffer, offset, timeout))

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        return self._wait(lambda: self._slab.read(nbytes, offset, timeout))

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.write(buffer, offset, timeout))

    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.readv(parts, timeout))

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.writev(parts, timeout))

    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.gather(offsets, nbytes, out, timeout))

    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.scatter(offsets, nbytes, source, timeout))

    def load(self, offset: int, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.load(offset, timeout))

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        self._wait(lambda: self._slab.store(offset, value, timeout))

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.fetch_add(offset, value, timeout))

    def wait(self, offset: int, expected: int, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.wait(offset, expected, timeout))

    def grant(
        self, tenant: str, *, mode: str = "r", expires: float | None = None, timeout: float | None = None
    ) -> None:
        self._wait(lambda: self._slab.grant(tenant, mode=mode, expires=expires, timeout=timeout))

    def revoke(self, tenant: str, *, timeout: float | None = None) -> None:
        self._wait(lambda: self._slab.revoke(tenant, timeout=timeout))

    def grants(self, *, timeout: float | None = None) -> Sequence[GrantInfo]:
        return self._wait(lambda: self._slab.grants(timeout=timeout))

    def notify(self, offset: int, timeout: float | None = None) -> None:
        self._wait(lambda: self._slab.notify(offset, timeout))

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        return self._wait(lambda: self._slab.compare_swap(offset, expected, new, timeout))

    def free(self, *, timeout: float | None = None) -> None:
        self._wait(lambda: self._slab.free(timeout=timeout))

    def close(self) -> None:
        self._wait(self._slab.close)

    def reserve(self, *, copy: bool = False, checksum: bool = True, timeout: float | None = None) -> AwaitedDraft:
        slab = self._slab
        draft = self._wait(lambda: slab.reserve(copy=copy, checksum=checksum, timeout=timeout))
        return AwaitedDraft(self._pool, draft)

    @property
    def info(self) -> SlabInfo:
        return self._slab.info

    @property
    def exclusive(self) -> bool:
        return self._slab.exclusive


class AwaitedDraft:
    """A :class:`farpool.aio.Draft` whose calls are awaited at once."""

    def __init__(self, pool: AwaitedPool, draft: farpool.aio.Draft) -> None:
        self._wait = pool.wait
        self.draft = draft
        self.view = draft.view

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        return self._wait(lambda: self.draft.read(nbytes, offset, timeout))

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self._wait(lambda: self.draft.write(buffer, offset, timeout))

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self._wait(lambda: self.draft.writev(parts, timeout))

    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        return self._wait(lambda: self.draft.gather(offsets, nbytes, out, timeout))

    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        return self._wait(lambda: self.draft.scatter(offsets, nbytes, source, timeout))

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        self._wait(lambda: self.draft.store(offset, value, timeout))

    def commit(self, *, timeout: float | None = None) -> None:
        self._wait(lambda: self.draft.commit(timeout=timeout))

    def close(self) -> None:
        self._wait(self.draft.close)
