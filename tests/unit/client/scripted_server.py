"""A server whose answers a test decides: what the client's edges are tried with.

Sockets and frames are real. The server runs in threads of the test's own process, so that a test can act at the
very moment at which a request arrives.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from farpool.protocol.errors import AuthenticationFailed, FarpoolError, SlabNotFound, StaleSlab
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

WITHIN = 10.0
"""Seconds in which what a test waits for has to come."""

R = TypeVar("R", bound=Request)


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
        self.peers: list[Peer] = []
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
        for peer in self.peers:
            peer.cut()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(WITHIN)
        for peer in self.peers:
            peer.socket.close()
        self.peers.clear()
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
        self.peers.append(peer)
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
