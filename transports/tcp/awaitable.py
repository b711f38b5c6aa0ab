"""The awaitable twins of tcp regions: one pipelined data connection for each event loop of a session."""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TYPE_CHECKING

from farpool.native.checks import seconds_of
from farpool.native.equal_parts import EqualParts
from farpool.native.tcp_peer import TcpPeer, check_hello
from farpool.native.tcp_pipeline import TcpPipeline
from farpool.native.tcp_region import TcpRegion
from farpool.native.tcp_wire import ANSWER_BYTES, MAX_PARTS, unpack_answer
from farpool.protocol.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    FarpoolError,
    ServerLost,
    StaleSlab,
    out_of_descriptors,
)
from farpool.transports.reaching import reach
from farpool.transports.renewing import renew
from farpool.transports.threads import in_thread
from farpool.transports.together import together

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from farpool.native.tls import TlsConnection

__all__ = ["AwaitableConnection", "AwaitableTcpRegion"]

Submit = Callable[[TcpPipeline, float], "asyncio.Future[int]"]


class AwaitableConnection:
    """The session's pipelined connection on one event loop; opened when first needed, and again when it was lost.

    What blocks is done in *threads*, the session's.
    """

    def __init__(self, peer: TcpPeer, threads: ThreadPoolExecutor) -> None:
        self.threads = threads
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._pipeline: TcpPipeline | None = None
        self._version = 0

    def current(self) -> TcpPipeline | None:
        """Return the connection if it is open and its credentials are still the session's."""
        pipeline = self._pipeline
        if pipeline is None or self._version != self._peer.version or not pipeline.usable():
            return None
        return pipeline

    async def open(self, deadline: float) -> TcpPipeline:
        """Return an open connection.

        Raises ``ServerLost``, ``AuthenticationFailed``, ``QuotaExceeded`` or ``DeadlineExceeded``.
        """
        host, port = self._peer.address
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())), self._opening:
                if (pipeline := self.current()) is not None:
                    return pipeline
                self.close()
                version = self._peer.version
                opened, encryption = await self._connect(deadline)
                self._pipeline = TcpPipeline(opened.detach(), version, self._loop, encryption)
                self._version = version
                return self._pipeline
        except FarpoolError:
            raise
        except TimeoutError:
            raise DeadlineExceeded(f"the data port {host}:{port} did not answer in time; raise timeout=") from None
        except OSError as error:
            lost = ServerLost(f"no data connection to {host}:{port}: {error}; is the server running?")
            raise out_of_descriptors(error) or lost from None

    async def _connect(self, deadline: float) -> tuple[socket.socket, TlsConnection | None]:
        """Return a connection that has said hello, and its encryption if it has any."""
        loop, peer = self._loop, self._peer
        host, port = peer.address
        label = f"the data port {host}:{port}"
        opened = await in_thread(self.threads, deadline, _close, reach, host, port, deadline, label)
        try:
            opened.setblocking(False)
            if peer.tls is None:
                encryption = None
                answer = await _say_hello(loop, opened, peer.hello)
            else:
                encryption = peer.tls.begin(opened.fileno(), label)
                answer = await _say_hello_by_tls(loop, opened, encryption, peer.hello)
            said = unpack_answer(answer)
            check_hello(said["status"], said["detail"], host, port)
        except BaseException:
            opened.close()
            raise
        return opened, encryption

    def close(self) -> None:
        """Close the connection; what is in flight fails with ``ServerLost``. From another thread the loop does it."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None:
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop or not self._loop.is_running():
            pipeline.close()
        else:
            self._loop.call_soon_threadsafe(pipeline.close)


def _close(opened: socket.socket) -> None:
    opened.close()


async def _say_hello(loop: asyncio.AbstractEventLoop, opened: socket.socket, hello: bytes) -> bytes:
    await loop.sock_sendall(opened, hello)
    answer = b""
    while len(answer) < ANSWER_BYTES:
        more = await loop.sock_recv(opened, ANSWER_BYTES - len(answer))
        if not more:
            raise ConnectionResetError("the server closed it after the hello")
        answer += more
    return answer


async def _say_hello_by_tls(
    loop: asyncio.AbstractEventLoop, opened: socket.socket, encryption: TlsConnection, hello: bytes
) -> bytes:
    while wanted := encryption.greet():
        await _ready(loop, opened, writing=bool(wanted & select.POLLOUT))
    while hello:
        try:
            hello = hello[encryption.send(hello) :]
        except BlockingIOError:
            await _ready(loop, opened, writing=True)
    answer = b""
    while len(answer) < ANSWER_BYTES:
        try:
            more = encryption.receive(ANSWER_BYTES - len(answer))
        except BlockingIOError:
            await _ready(loop, opened, writing=False)
            continue
        if not more:
            raise ConnectionResetError("the server closed it after the hello")
        answer += more
    return answer


async def _ready(loop: asyncio.AbstractEventLoop, opened: socket.socket, *, writing: bool) -> None:
    """Wait until the socket can be read from, or written to."""
    ready = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(opened.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        remove(opened.fileno())


def _batch(region: TcpRegion, parts: list[tuple[int, Buffer]], *, writes: bool) -> Submit:
    def submit(pipeline: TcpPipeline, deadline: float) -> asyncio.Future[int]:
        move = pipeline.writev if writes else pipeline.readv
        return move(region, parts, deadline)

    return submit


def _parts(region: TcpRegion, parts: EqualParts, first: int) -> Submit:
    return lambda pipeline, deadline: pipeline.move_parts(region, parts, first, deadline)


class AwaitableTcpRegion:
    """The awaitable twin of one region; it shares the region's handle, checks and errors."""

    def __init__(self, region: TcpRegion, connection: AwaitableConnection, timeout: float) -> None:
        self._region = region
        self._connection = connection
        self._timeout = timeout

    def _until(self, timeout: float | None) -> float:
        return time.monotonic() + seconds_of(timeout, self._timeout)

    async def _run(self, submit: Submit, deadline: float, *, again: bool) -> int:
        """Carry one request to its end; *again* says that it may be sent twice."""
        for attempt in itertools.count(1):
            future: asyncio.Future[int] | None = None
            try:
                pipeline = self._connection.current()
                if pipeline is None:
                    self._region.check_range(0, 0)  # a closed region opens no connection
                    pipeline = await self._connection.open(deadline)
                future = submit(pipeline, deadline)
                return await future
            except AuthenticationFailed as error:
                if error.details.get("certificate"):
                    raise  # the next attempt would find the same one
            except ServerLost as error:
                if future is not None and error.details.get("begun") and not again:
                    raise
            except StaleSlab:
                if attempt > 1 or future is None:
                    raise
            await renew(self._region, deadline, attempt, self._connection.threads)
        raise AssertionError("unreachable")

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""
        region = self._region
        return await self._run(
            lambda line, until: line.read_into(region, buffer, offset, until), self._until(timeout), again=True
        )

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""
        self._region.check_range(offset, nbytes)
        result = BytesIO(bytes(nbytes))
        await self.read_into(result.getbuffer(), offset, timeout)
        return result.getvalue()  # its own bytes, not a copy, since nothing borrows them any more

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        region = self._region
        return await self._run(
            lambda line, until: line.write(region, buffer, offset, until), self._until(timeout), again=False
        )

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch and return the bytes read."""
        return await self._move(list(parts), timeout, writes=False)

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch and return the bytes written."""
        return await self._move(list(parts), timeout, writes=True)

    async def _move(self, parts: list[tuple[int, Buffer]], timeout: float | None, *, writes: bool) -> int:
        region = self._region
        deadline = self._until(timeout)
        region.check_parts(parts, writes)
        total = 0
        for start in range(0, len(parts), MAX_PARTS):
            submit = _batch(region, parts[start : start + MAX_PARTS], writes=writes)
            total += await self._run(submit, deadline, again=not writes)
        return total

    async def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        return await self._move_equal(self._region.describe(offsets, nbytes, out, inward=True), timeout, again=True)

    async def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        return await self._move_equal(
            self._region.describe(offsets, nbytes, source, inward=False), timeout, again=False
        )

    async def _move_equal(self, parts: EqualParts, timeout: float | None, *, again: bool) -> int:
        """Move parts of one size by as many requests as they need, all of which leave at once."""
        deadline = self._until(timeout)
        if not parts.nbytes:
            return 0
        firsts = range(0, parts.count, MAX_PARTS)
        return await together(
            [self._run(_parts(self._region, parts, first), deadline, again=again) for first in firsts]
        )

    async def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned word at *offset*."""
        region = self._region
        return await self._run(lambda line, until: line.load(region, offset, until), self._until(timeout), again=True)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        region = self._region
        await self._run(lambda line, until: line.store(region, offset, value, until), self._until(timeout), again=False)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* to the aligned word at *offset* atomically; return the old value."""
        region = self._region
        return await self._run(
            lambda line, until: line.fetch_add(region, offset, value, until), self._until(timeout), again=False
        )

    async def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        region = self._region
        return await self._run(
            lambda line, until: line.compare_swap(region, offset, expected, new, until),
            self._until(timeout),
            again=False,
        )

    async def close(self) -> None:
        """Let go of the slab."""
        self._region.close()
