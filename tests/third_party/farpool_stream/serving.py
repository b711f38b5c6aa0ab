"""The server half: one thread a connection, one lock a slab."""

from __future__ import annotations

import asyncio
import hmac
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import AuthenticationFailed, ProtocolError, TransportUnavailable
from farpool.transports.contract import Mode, ServedSession, ServedSlab, ServerContext
from farpool_stream.wire import ANSWER, CHUNK, HELLO, MAGIC, REQUEST, Operation, Request, Status, receive

PATIENCE = 10.0
"""Seconds that a peer has for its hello, for the rest of a message, and to read an answer."""

WORDS = {Operation.LOAD, Operation.STORE, Operation.FETCH_ADD, Operation.COMPARE_SWAP}


@dataclass(slots=True)
class Published:
    """A slab that sessions reach. Its memory is touched under the lock alone, and never after ``revoke``."""

    nbytes: int
    generation: int
    memory: MemoryMapping | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    writable: dict[int, bool] = field(default_factory=dict[int, bool])
    """By session."""

    def serve(self, session: int, request: Request, payload: bytes) -> tuple[Status, int, bytes]:
        """Do one request on the memory; return the answer's status, word and bytes."""
        with self.lock:
            memory = self.memory
            if memory is None or request.generation != self.generation or session not in self.writable:
                return Status.STALE, 0, b""
            if request.operation not in {Operation.READ, Operation.LOAD} and not self.writable[session]:
                return Status.READ_ONLY, 0, b""
            if request.offset + request.length > self.nbytes:
                return Status.OUT_OF_BOUNDS, 0, b""
            if request.operation in WORDS:
                return Status.OK, serve_word(memory, request), b""
            with memoryview(memory) as view, view[request.offset : request.offset + request.length] as part:
                if request.operation == Operation.READ:
                    return Status.OK, request.length, bytes(part)
                part[:] = payload
                return Status.OK, request.length, b""


def serve_word(memory: MemoryMapping, request: Request) -> int:
    """Do one operation on a word; atomic among the clients of this transport, whom the slab's lock orders."""
    old = memory.load(request.offset)
    if request.operation == Operation.STORE:
        memory.store(request.offset, request.operand)
    elif request.operation == Operation.FETCH_ADD:
        memory.store(request.offset, (old + request.operand) % (1 << 64))
    elif request.operation == Operation.COMPARE_SWAP and old == request.expected:
        memory.store(request.offset, request.operand)
    return old


class StreamServer:
    """A Unix socket beside the control plane's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, Published] = {}
        self._secrets: dict[int, bytes] = {}
        self._connections: dict[socket.socket, int] = {}
        """Open connections, and the session of each; 0 before its hello."""
        self._threads: list[threading.Thread] = []
        self._counters: Counter[str] = Counter()
        self._listener: socket.socket | None = None
        self._stopping = threading.Event()

    async def start(self, context: ServerContext) -> None:
        """Listen where only the server's user may connect."""
        self._report = context.report
        self._refused = context.refused
        self._path = f"{context.socket_path}.stream"
        try:
            self._listener = listen(self._path)
        except OSError as error:
            raise TransportUnavailable(f"cannot listen on {self._path}: {error}") from error
        self._run(self._accept, self._listener)

    async def stop(self) -> None:
        """Close every connection and wait for its thread."""
        if self._listener is not None:
            await asyncio.to_thread(self._end, self._listener)
            self._listener = None
            self._slabs.clear()

    def offer(self) -> Mapping[str, Any]:
        """Say where the socket is."""
        return {"path": self._path}

    def negotiate(self, session: ServedSession, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse: there is nothing to agree on."""
        raise ProtocolError("stream has nothing to negotiate")

    def publish(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Mapping[str, Any]:
        """Let the session's connections reach the slab."""
        with self._lock:
            self._secrets[session.id] = session.secret
            published = self._slabs.get(slab.id)
            if published is None:
                published = self._slabs[slab.id] = Published(slab.nbytes, slab.generation, slab.memory())
        with published.lock:
            published.writable[session.id] = mode == "rw"
        return {"path": self._path, "session": session.id, "secret": session.secret}

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Take the slab from one session."""
        published = self._slabs.get(slab.id)
        if published is not None:
            with published.lock:
                published.writable.pop(session_id, None)

    def revoke(self, slab: ServedSlab) -> None:
        """Take the slab from all; whoever has the lock now is the last to touch its memory."""
        with self._lock:
            published = self._slabs.pop(slab.id, None)
        if published is not None:
            with published.lock:
                published.memory = None

    def end_session(self, session_id: int) -> None:
        """Close the session's connections."""
        with self._lock:
            self._secrets.pop(session_id, None)
        self._close_connections(session_id)

    def holders_may_map(self) -> bool:
        """Say no: clients never see the memory."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Count requests by kind, and connections."""
        with self._lock:
            return {**self._counters, "connections": len(self._connections)}

    # Threads

    def _run(self, function: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=function, args=(argument,), name="farpool-stream", daemon=True)
        with self._lock:
            self._threads = [other for other in self._threads if other.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _end(self, listener: socket.socket) -> None:
        self._stopping.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        self._close_connections(None)
        for thread in list(self._threads):
            thread.join(PATIENCE)
        listener.close()
        Path(self._path).unlink(missing_ok=True)

    def _close_connections(self, session_id: int | None) -> None:
        with self._lock:
            for peer, session in self._connections.items():
                if session_id in {None, session}:
                    with suppress(OSError):
                        peer.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                self._stopping.wait(0.1)  # no descriptor is left, or `stop` has shut the listener down
                continue
            with self._lock:
                self._connections[peer] = 0
            self._run(self._converse, peer)

    def _converse(self, peer: socket.socket) -> None:
        try:
            session = 0 if self._stopping.is_set() else self._greet(peer)
            while session and self._serve_one(peer, session):
                pass
        except (OSError, ValueError):  # an ended or silent peer, or one that does not speak this protocol
            pass
        finally:
            with self._lock:
                del self._connections[peer]
                peer.close()

    def _greet(self, peer: socket.socket) -> int:
        magic, session, secret = HELLO.unpack(receive(peer, HELLO.size, lambda: PATIENCE))
        with self._lock:
            known = self._secrets.get(session, b"")
            accepted = magic == MAGIC and bool(known) and hmac.compare_digest(known, secret)
            if accepted:
                self._connections[peer] = session
        if not accepted:
            error = AuthenticationFailed("unknown session or wrong secret")
            self._refused("hello", error, {"peer": f"pid {peer_pid(peer)}"})
            return 0
        peer.sendall(ANSWER.pack(Status.OK, 0))
        return int(session)

    def _serve_one(self, peer: socket.socket, session: int) -> bool:
        header = receive(peer, 1, lambda: None) + receive(peer, REQUEST.size - 1, lambda: PATIENCE)
        request = Request(*REQUEST.unpack(header))
        operation = Operation(request.operation)
        if request.length > CHUNK or (operation in WORDS and (request.length != 8 or request.offset % 8)):
            self._report("garbage", {"peer": f"pid {peer_pid(peer)}", "reason": f"request {tuple(request)}"})
            return False
        payload = receive(peer, request.length, lambda: PATIENCE) if operation == Operation.WRITE else b""
        published = self._slabs.get(request.slab)
        answer = published.serve(session, request, payload) if published else (Status.STALE, 0, b"")
        with self._lock:
            self._counters[operation.name.lower()] += 1
        peer.settimeout(PATIENCE)
        peer.sendall(ANSWER.pack(answer[0], answer[1]) + answer[2])
        return True


def listen(path: str) -> socket.socket:
    """Return a socket that listens at *path*, in the place of one that a dead server has left."""
    Path(path).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def peer_pid(peer: socket.socket) -> int:
    """Return the process at the other end, for the log."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)
