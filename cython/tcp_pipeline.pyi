import asyncio
from collections.abc import Iterable

from typing_extensions import Buffer

from farpool.native.cipher import Encryption
from farpool.native.equal_parts import EqualParts
from farpool.native.tcp_region import TcpRegion

class TcpPipeline:
    """One data connection of an event loop, with many requests in flight. Used from the loop's thread alone.

    Takes over the connected, non-blocking *fd* after the hello, which was said with the peer's credentials of that
    *version*; with an *encryption* every byte goes through it.
    Each method returns a future; deadlines are seconds of ``time.monotonic()``. Requests take effect in the order of
    the calls. A cancelled request's answer is thrown away when it comes, and its buffer is not touched any more. When
    the connection ends every future fails with ``ServerLost``.
    """

    def __init__(
        self, fd: int, version: int, loop: asyncio.AbstractEventLoop, encryption: Encryption | None = None
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def usable(self) -> bool:
        """Tell whether a request may be sent: a connection that rested is looked at, since its end was not seen yet."""
    @property
    def pending(self) -> int:
        """Requests that have no answer yet, cancelled ones included."""
    def read_into(self, region: TcpRegion, buffer: Buffer, offset: int, deadline: float) -> asyncio.Future[int]: ...
    def write(self, region: TcpRegion, buffer: Buffer, offset: int, deadline: float) -> asyncio.Future[int]: ...
    def readv(self, region: TcpRegion, parts: Iterable[tuple[int, Buffer]], deadline: float) -> asyncio.Future[int]: ...
    def writev(
        self, region: TcpRegion, parts: Iterable[tuple[int, Buffer]], deadline: float
    ) -> asyncio.Future[int]: ...
    def move_parts(self, region: TcpRegion, parts: EqualParts, first: int, deadline: float) -> asyncio.Future[int]:
        """Move the parts from number *first* on that one request takes; the result is their bytes."""
    def load(self, region: TcpRegion, offset: int, deadline: float) -> asyncio.Future[int]: ...
    def store(self, region: TcpRegion, offset: int, value: int, deadline: float) -> asyncio.Future[int]: ...
    def fetch_add(self, region: TcpRegion, offset: int, value: int, deadline: float) -> asyncio.Future[int]: ...
    def compare_swap(
        self, region: TcpRegion, offset: int, expected: int, new: int, deadline: float
    ) -> asyncio.Future[int]: ...
    def on_readable(self) -> None:
        """Receive once, and finish the requests that are answered; the loop calls it."""
    def on_writable(self) -> None:
        """Send as much as the socket takes; the loop calls it."""
    def on_timer(self) -> None:
        """Fail the requests whose deadline has passed; the loop calls it."""
    def close(self) -> None:
        """Fail what is in flight with ``ServerLost`` and close the connection. Idempotent."""
