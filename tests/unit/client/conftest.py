"""A server whose answers a test decides, and a transport in plain Python: what the client's edges are tried with.

Sockets and frames are real. The server runs in threads of the test's own process, so that a test can act at the very
moment at which a request arrives.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from farpool.client import aio
from farpool.client.pool import Pool
from farpool.client.session import Session
from farpool.client.transports import Selection, TransportReport
from farpool.protocol.addresses import Address
from farpool.protocol.errors import (
    AuthenticationFailed,
    FarpoolError,
    NotMappable,
    OutOfBounds,
    ReadOnly,
    RegionInUse,
    SlabNotFound,
    StaleSlab,
)
from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Done,
    Free,
    Hello,
    Listing,
    Offer,
    Open,
    Reply,
    Request,
    ServerStat,
    SlabInfo,
    SlabList,
    Stat,
    Welcome,
    decode_request,
    encode_error,
    encode_event,
    encode_reply,
)
from farpool.transports.contract import Probe, Region, Ticket

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from typing_extensions import Buffer

WITHIN = 10.0
"""Seconds in which what a test waits for has to come."""

R = TypeVar("R", bound=Request)


# The server -----------------------------------------------------------------------------------------


class Peer:
    """The server's end of one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.resumed = False

    def reply(self, request_id: int, reply: Reply) -> None:
        if request_id:
            self.send(encode_reply(request_id, reply))

    def error(self, request_id: int, error: FarpoolError) -> None:
        if request_id:
            self.send(encode_error(request_id, error))

    def event(self, kind: str, slab: SlabInfo) -> None:
        self.send(encode_event(kind, id=slab.id, generation=slab.generation))

    def send(self, frame: bytes) -> None:
        with suppress(OSError):
            self.socket.sendall(frame)

    def cut(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


Asked = tuple[Peer, int, Request]
Rule = Callable[[Peer, int, Request], object]


class ScriptedServer:
    """Answers like a pool without memory; ``rules`` replaces the answer to an operation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rules: dict[type[Request], Rule] = {}
        self.requests: list[tuple[int, Request]] = []
        self.slabs: dict[int, SlabInfo] = {}
        self.sessions: dict[int, bytes] = {}
        self.heartbeat = 60.0
        self.epoch = 0
        self._made = 0
        self._changed = threading.Condition()
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self.start()

    def start(self) -> None:
        self.epoch += 1
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._run(self._accept, self._listener)

    def stop(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for peer in self._peers:
            peer.cut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(WITHIN)
        for peer in self._peers:
            peer.socket.close()
        self._peers.clear()
        self._threads.clear()

    def _run(self, target: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), name="scripted-server", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self._run(self._serve, listener.accept()[0])

    def _serve(self, connected: socket.socket) -> None:
        peer = Peer(connected)
        self._peers.append(peer)
        decoder = FrameDecoder()
        with suppress(OSError):
            while data := connected.recv(65536):
                for payload in decoder.feed(data):
                    message = decode_payload(payload)
                    self._take(peer, message[1], decode_request(message))

    def _take(self, peer: Peer, request_id: int, request: Request) -> None:
        with self._changed:
            self.requests.append((request_id, request))
            self._changed.notify_all()
        try:
            self.rules.get(type(request), self.answer)(peer, request_id, request)
        except FarpoolError as error:
            peer.error(request_id, error)

    def seen(self, kind: type[R], count: int = 1) -> list[R]:
        """Wait until *count* requests of this kind have come, and return all that have."""

        def found() -> list[R]:
            return [request for _, request in self.requests if isinstance(request, kind)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= count, WITHIN), f"no {kind.__name__} came"
            return found()

    def hold(self, kind: type[Request]) -> list[Asked]:
        """Answer requests of this kind no more; they gather in the list that is returned."""
        held: list[Asked] = []

        def rule(peer: Peer, request_id: int, request: Request) -> None:
            held.append((peer, request_id, request))

        self.rules[kind] = rule
        return held

    def cut_once(self, kind: type[Request], *, done: bool = False) -> None:
        """Cut the connection at the next request of this kind; if *done*, after doing it."""

        def rule(peer: Peer, request_id: int, request: Request) -> None:
            del self.rules[kind]
            if done:
                self.answer(peer, 0, request)
            peer.cut()

        self.rules[kind] = rule

    def interrupt(self, kind: type[Request]) -> list[Asked]:
        """Hold requests of this kind, and send this process Ctrl-C at each."""
        held = self.hold(kind)
        hold = self.rules[kind]

        def rule(peer: Peer, request_id: int, request: Request) -> None:
            hold(peer, request_id, request)
            os.kill(os.getpid(), signal.SIGINT)

        self.rules[kind] = rule
        return held

    def answer(self, peer: Peer, request_id: int, request: Request) -> None:
        """Do what a pool does."""
        match request:
            case Hello():
                peer.reply(request_id, self.welcome(peer, request))
            case Allocate():
                peer.reply(request_id, self.attached(self.make(request)))
            case Open():
                peer.reply(request_id, self.attached(self.find(request)))
            case Attach():
                slab = self.slabs.get(request.id)
                if slab is None or slab.generation != request.generation:
                    raise StaleSlab(f"slab #{request.id} has ended")
                peer.reply(request_id, self.attached(slab))
            case Free():
                if self.slabs.pop(request.id, None) is None:
                    raise SlabNotFound(f"there is no slab #{request.id}")
                peer.reply(request_id, Done())
            case Listing():
                later = sorted(slab_id for slab_id in self.slabs if slab_id > request.after)
                page = [self.slabs[slab_id] for slab_id in later[:2]]
                peer.reply(request_id, SlabList(slabs=page, more=len(later) > 2))
            case Stat():
                peer.reply(request_id, self.stat())
            case _:
                peer.reply(request_id, Done())

    def welcome(self, peer: Peer, hello: Hello) -> Welcome:
        session = len(self.sessions) + 1
        if hello.resume is not None:
            session = hello.resume.session
            if self.sessions.get(session) != hello.resume.secret:
                raise AuthenticationFailed("that session has ended")
            peer.resumed = True
        secret = self.sessions.setdefault(session, bytes([session]) * 32)
        return Welcome(
            protocol=1,
            server="scripted",
            session=session,
            secret=secret,
            tenant="default",
            epoch=self.epoch,
            resumed=peer.resumed,
            heartbeat=self.heartbeat,
            session_timeout=60.0,
            offers=[Offer(transport="plain", available=True)],
        )

    def make(self, request: Allocate) -> SlabInfo:
        self._made += 1
        slab = SlabInfo(
            id=self._made,
            generation=self._made + 100,
            nbytes=request.nbytes,
            tenant="default",
            name=request.name,
            lease=request.lease,
        )
        self.slabs[slab.id] = slab
        return slab

    def find(self, request: Open) -> SlabInfo:
        for slab in self.slabs.values():
            if slab.id == request.id or (slab.name is not None and slab.name == request.name):
                return slab
        raise SlabNotFound(f"there is no slab {request.name or request.id!r}")

    def attached(self, slab: SlabInfo) -> Attached:
        return Attached(slab=slab, epoch=self.epoch, transport="plain")

    def stat(self) -> ServerStat:
        return ServerStat(
            server="scripted",
            epoch=self.epoch,
            pid=1,
            uptime=0.0,
            state="serving",
            arena="",
            capacity=0,
            allocated=0,
            reclaiming=0,
            free=0,
            slabs=len(self.slabs),
            sessions=len(self.sessions),
            cpu_seconds=0.0,
            transports={},
            addresses=[],
        )


# The transport --------------------------------------------------------------------------------------


class PlainMemory(bytearray):
    """Bytes that keep the region alive that shows them."""

    region: PlainRegion | None = None


class PlainRegion:
    """A region whose memory is this process's own; enough of the contract for what is tried here."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.memory = PlainMemory(ticket.nbytes)
        self.closed = False

    @property
    def nbytes(self) -> int:
        return self.ticket.nbytes

    def _range(self, offset: int, nbytes: int, *, writes: bool = False) -> slice:
        if self.closed:
            raise StaleSlab(f"slab {self.ticket.label} is closed")
        if writes and not self.ticket.writable:
            raise ReadOnly(f"slab {self.ticket.label} was opened for reading")
        if offset < 0 or offset + nbytes > len(self.memory):
            raise OutOfBounds("past the end")
        return slice(offset, offset + nbytes)

    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        with memoryview(buffer).cast("B") as view:
            view[:] = self.memory[self._range(offset, len(view))]
            return len(view)

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        return bytes(self.memory[self._range(offset, nbytes)])

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        data = bytes(buffer)
        self.memory[self._range(offset, len(data), writes=True)] = data
        return len(data)

    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return sum(self.read_into(buffer, offset) for offset, buffer in parts)

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return sum(self.write(buffer, offset) for offset, buffer in parts)

    def load(self, offset: int, timeout: float | None = None) -> int:
        return int.from_bytes(self.read(8, offset), "little")

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        self.write(value.to_bytes(8, "little"), offset)

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        old = self.load(offset)
        self.store(offset, (old + value) % (1 << 64))
        return old

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        old = self.load(offset)
        if old == expected:
            self.store(offset, new)
        return old

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        self._range(offset, nbytes or 0)

    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None:
        self._range(offset, nbytes or 0)

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        if self.ticket.label == "unmappable":
            raise NotMappable("plain memory of that name is not shown")
        part = self._range(offset, len(self.memory) - offset if nbytes is None else nbytes)
        self.memory.region = self
        view = memoryview(self.memory)[part]
        return view if self.ticket.writable else view.toreadonly()

    def close(self) -> None:
        if not self.closed:
            try:
                self.memory.append(0)  # refused while a view lives
            except BufferError:
                raise RegionInUse(f"views of slab {self.ticket.label} are alive") from None
            self.closed = True


class AwaitablePlainRegion:
    """The awaitable twin: each operation yields to the loop once."""

    def __init__(self, region: Region) -> None:
        self.region = region

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self.region.read_into(buffer, offset)

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        return self.region.read(nbytes, offset)

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self.region.write(buffer, offset)

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self.region.readv(parts)

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self.region.writev(parts)

    async def load(self, offset: int, timeout: float | None = None) -> int:
        return self.region.load(offset)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        self.region.store(offset, value)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        return self.region.fetch_add(offset, value)

    async def compare_swap(
        self,
        offset: int,
        expected: int,
        new: int,
        timeout: float | None = None,
    ) -> int:
        return self.region.compare_swap(offset, expected, new)

    async def close(self) -> None:
        self.region.close()


@dataclass
class PlainTransport:
    """The client half. Regions are private to their handle: nothing here tests what bytes another handle sees."""

    usable: bool = True
    failures: list[FarpoolError] = field(default_factory=list[FarpoolError])
    closed: bool = False
    tickets: list[Ticket] = field(default_factory=list[Ticket])

    def probe(self, offer: Offer) -> Probe:
        return Probe(self.usable, "" if self.usable else "it was told not to be")

    def attach(self, ticket: Ticket) -> PlainRegion:
        self.tickets.append(ticket)
        if self.failures:
            raise self.failures.pop(0)
        return PlainRegion(ticket)

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitablePlainRegion:
        return AwaitablePlainRegion(region)

    def close(self) -> None:
        self.closed = True


# Fixtures -------------------------------------------------------------------------------------------


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A path for a Unix socket, short enough wherever temporary files are."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def server(socket_path: Path) -> Iterator[ScriptedServer]:
    """A running scripted server."""
    scripted = ScriptedServer(socket_path)
    yield scripted
    scripted.stop()


@pytest.fixture
def transport() -> PlainTransport:
    """The client half that ``pool`` attaches over."""
    return PlainTransport()


def parts_of(server: ScriptedServer, transport: PlainTransport) -> tuple[Session, Selection, float]:
    session = Session(Address(path=str(server.path)))
    session.open(time.monotonic() + WITHIN)
    report = (TransportReport("plain", "chosen", ""),)
    return session, Selection("plain", transport, report), WITHIN


@pytest.fixture
def make_pool(server: ScriptedServer, transport: PlainTransport) -> Callable[[], Pool]:
    """Connect a pool to ``server``; the test closes it."""
    return lambda: Pool(*parts_of(server, transport))


@pytest.fixture
def pool(server: ScriptedServer, transport: PlainTransport) -> Iterator[Pool]:
    """A pool that is connected to ``server``."""
    with Pool(*parts_of(server, transport)) as connected:
        yield connected


@pytest.fixture
def make_aio_pool(server: ScriptedServer, transport: PlainTransport) -> Callable[[ThreadPoolExecutor], aio.Pool]:
    """Connect an awaitable pool to ``server``."""
    return lambda threads: aio.Pool(*parts_of(server, transport), threads)
