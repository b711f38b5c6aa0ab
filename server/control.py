"""The control plane's connections: frames in, replies and events out, over Unix and TCP sockets alike.

Requests that need no thread are answered in the loop's iteration that read them. A client that does not read
its replies is not read from either; one that sends what no client of ours sends loses its connection, and is
logged once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable
from typing import Final, cast

import structlog

from farpool.protocol.errors import AuthenticationFailed, FarpoolError, ProtocolError
from farpool.protocol.framing import decode_payload
from farpool.protocol.messages import (
    Challenge,
    Detach,
    Done,
    Free,
    Goodbye,
    Hello,
    LetGo,
    Reply,
    Request,
    Takeover,
    decode_request,
    encode_error,
    encode_event,
    encode_reply,
    request_id_of,
)
from farpool.server.audit import REFUSALS
from farpool.server.authentication import Exchange
from farpool.server.control_stream import ControlStream, Refused
from farpool.server.encryption import Keys
from farpool.server.peers import Peer, ProcessWatch, duplicate, lacks_descriptors, pass_descriptors, peer_of
from farpool.server.rationing import RationedLog
from farpool.server.service import PoolService
from farpool.server.sessions import Session, SessionEvent
from farpool.server.strangers import MAX_STRANGERS, Strangers

__all__ = ["Connection", "ControlPlane"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.control")

HELLO_SECONDS: Final = 5.0
"""A connection that has not said hello by then is closed."""

MAX_WORKING: Final = 64
"""Long requests of one connection at a time; more of its requests wait."""

WRITE_HIGH_BYTES: Final = 256 << 10
"""Unsent bytes from which on a connection's requests wait."""

WRITE_CAP_BYTES: Final = 8 << 20
"""Unsent bytes, events among them, at which a connection is given up; a reply is a frame of 1 MiB at most."""

SPARE_DESCRIPTORS: Final = 8
"""Descriptors that are kept from new connections, so that the sessions that are open can go on."""

CLOSE_SECONDS: Final = 5.0
"""How long a closing connection may take to read what it was sent."""

PARTING_SECONDS: Final = 1.0
"""How long the reason of a failed handshake may take to be read."""


class ControlPlane:
    """All control connections of one server; with *keys* those that come over a network speak TLS."""

    def __init__(self, service: PoolService, loop: asyncio.AbstractEventLoop, keys: Keys | None = None) -> None:
        self.service = service
        self.loop = loop
        self.keys = keys
        self.connections: set[Connection] = set()
        self.strangers: Strangers[Connection] = Strangers()
        self.turns = service.turns
        self.rationed = RationedLog(loop)
        """For what those cause who have shown nothing yet."""

    def connection(self) -> Connection:
        """Make the protocol of a new connection; what ``create_server`` is given."""
        return Connection(self)

    def broadcast(self, kind: str) -> None:
        """Send an event to every open session."""
        frame = encode_event(kind)
        for connection in list(self.connections):
            if connection.session is not None:
                connection.send(frame)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self.connections):
            connection.close("the server stops")


class Connection(asyncio.Protocol):
    """One control connection, and the channel of its session."""

    def __init__(self, plane: ControlPlane) -> None:
        self.session: Session | None = None
        self.peer = Peer("unknown")
        self._exchange: Exchange | None = None
        self._stream = ControlStream()
        self._plane = plane
        self._working: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._write_paused = False
        self._read_paused = False
        self._timer: asyncio.TimerHandle | None = None

    # asyncio calls these ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock on a new connection's hello."""
        # uvloop's transports are no subclasses of asyncio's, but have the same methods.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES)
        self.peer = peer_of(transport)
        if self._plane.keys is not None and self.peer.uid is None:
            self._stream = ControlStream(self._plane.keys.channel())
        self._plane.connections.add(self)
        self._timer = self._plane.loop.call_later(HELLO_SECONDS, self._no_hello)
        pushed_out = self._plane.strangers.add(self, local=self.peer.uid is not None)
        if pushed_out is not None:
            pushed_out.give_way()
        if lacks_descriptors(transport, SPARE_DESCRIPTORS):
            reason = "the server has hardly a file descriptor left; raise its limit (LimitNOFILE, ulimit -n)"
            self._refuse(reason, FarpoolError(reason))

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole now."""
        if self._closing:
            return
        assert self._transport is not None
        try:
            answer = self._stream.receive(data)
        except Refused as refused:
            self._refuse(refused.reason, refused.error, refused.alert)
            return
        if answer:
            self._transport.write(answer)
        if self.session is None and (name := self._stream.certificate_name()) is not None:
            self.peer = dataclasses.replace(self.peer, certificate_name=name)
        self.work()
        if self._stream.ended:
            self.close("its client has ended it")

    def _has_request(self) -> bool:
        """Tell whether a request is whole; False too if the connection had to be refused."""
        try:
            return self._stream.fill()
        except Refused as refused:
            self._refuse(refused.reason, refused.error)
            return False

    def pause_writing(self) -> None:
        """Leave further requests alone until the client reads its replies."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """Take up the requests that were left alone."""
        self._write_paused = False
        self.work()

    def eof_received(self) -> bool:
        """Let the transport close: a client that says no more is gone."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Begin the grace of the session."""
        self._stop_timer()
        self._plane.connections.discard(self)
        self._plane.turns.leave(self._tenant, self)
        self._plane.strangers.remove(self)
        if self._stream.buffered and not self._closing:
            nbytes = self._stream.buffered
            self._plane.rationed.info("connection ended in the middle of a frame", peer=str(self.peer), nbytes=nbytes)
        if not self._closing:
            self._closing = True
            self._hear_last_words()
        self._stream.clear()
        if self.session is not None:
            log.debug("connection ended", peer=str(self.peer), session=self.session.id, error=exc and str(exc))
            self._plane.service.life.sessions.lose(self.session, self)

    def _hear_last_words(self) -> None:
        """Do what a client asked that has gone since, as far as it gives something back; the rest has no taker."""
        while self.session is not None and self.session.alive and self._has_request():
            with contextlib.suppress(FarpoolError):
                request = decode_request(decode_payload(self._stream.take()))
                if not isinstance(request, (Detach, Free, Goodbye)):
                    continue
                try:
                    reply = self._answer(0, request)
                except FarpoolError as error:
                    self._fail(0, error, request)
                    continue
                if reply is not None and not isinstance(reply, Reply):
                    self._await(0, reply, request)

    # The session calls these --------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        """Queue a frame; give the connection up if too much is queued already."""
        transport = self._transport
        if transport is None or self._closing or not self._stream.ready:
            return
        transport.write(self._stream.seal(frame))
        if self._write_paused and transport.get_write_buffer_size() > WRITE_CAP_BYTES:
            self._closing = True
            log.warning("connection given up", peer=str(self.peer), reason="it does not read what it is sent")
            transport.abort()

    def close(self, reason: str) -> None:
        """Close the connection; what is queued is sent first, if the client reads it soon."""
        if self._closing or self._transport is None:
            return
        self._closing = True
        log.debug("connection closed", peer=str(self.peer), reason=reason)
        self._stop_timer()
        self._timer = self._plane.loop.call_later(CLOSE_SECONDS, self._transport.abort)
        self._transport.close()

    def _part(self, alert: bytes) -> None:
        """Send TLS's last word, and close once the client had time to read it: an end at once could overtake it."""
        assert self._transport is not None
        self._closing = True
        self._transport.write(alert)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._stop_timer()
        self._timer = self._plane.loop.call_later(PARTING_SECONDS, self._transport.abort)

    # Requests -----------------------------------------------------------------------------------------

    @property
    def _tenant(self) -> str:
        """Whose time its requests take; no tenant has the name of those who have not said hello."""
        return "" if self.session is None else self.session.tenant

    def work(self) -> None:
        """Answer requests while the client reads, and its tenant has time in this turn of the loop."""
        stream, turns = self._stream, self._plane.turns
        while not self._closing and self._has_request():
            if self._write_paused or len(self._working) >= MAX_WORKING:
                break
            tenant = self._tenant
            if not turns.may_work(tenant):
                turns.wait(tenant, self)
                break
            begun = turns.begin()
            self._take(stream.take())
            turns.end(tenant, begun)
        if self._transport is None or self._closing:
            return
        if stream.waiting is not self._read_paused:
            self._read_paused = stream.waiting
            if self._read_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _take(self, payload: bytes) -> None:
        try:
            message = decode_payload(payload)
            request_id = request_id_of(message)
        except ProtocolError as error:
            self._refuse(str(error), error)
            return
        request: Request | None = None
        try:
            request = decode_request(message)
            reply = self._answer(request_id, request)
            if isinstance(reply, Reply):
                self._reply(request_id, reply, request)
            elif reply is not None:
                self._await(request_id, reply, request)
        except FarpoolError as error:
            self._fail(request_id, error, request)
        except Exception as error:  # noqa: BLE001  one request's bug must not take the loop down
            self._confess(request_id, error, request)

    def _answer(self, request_id: int, request: Request) -> Reply | Awaitable[Reply] | None:
        service = self._plane.service
        if self.session is None:
            self._greet(request_id, request)
            return None
        if isinstance(request, Goodbye):
            self.session.mapped = frozenset(request.mapped)
            # Answered once it is noted: a server that is killed a moment later must not think it still maps.
            farewell = encode_reply(request_id, Done()) if request_id else b""
            service.life.sessions.end(self.session, SessionEvent.GOODBYE, farewell)
            return None
        if isinstance(request, (Takeover, LetGo)):
            service.check_administrator(self.session, request)
            self._hand_over(request_id, request, self.session)
            return None
        return service.handle(self.session, request)

    def _hand_over(self, request_id: int, request: Takeover | LetGo, session: Session) -> None:
        """Pass what a successor needs, or begin our end: no transport of the loop passes descriptors."""
        service, transport = self._plane.service, self._transport
        if service.handover is None or transport is None:
            raise ProtocolError(f"this server cannot answer {request.operation}")
        if isinstance(request, Takeover):
            inheritance, descriptors = service.handover.offer(session.id, request)
            pass_descriptors(transport, encode_reply(request_id, inheritance), descriptors)
        else:
            service.handover.let_go(session.id, duplicate(transport))
            service.life.sessions.end(session, SessionEvent.GOODBYE, encode_reply(request_id, Done()))
        service.audit.act(self.peer, session, request)

    def _greet(self, request_id: int, request: Request) -> None:
        if isinstance(request, Challenge):
            self._exchange, challenged = self._plane.service.authentication.challenge(request)
            self._reply(request_id, challenged, request)
            return
        if not isinstance(request, Hello):
            self._refuse(
                f"{request.operation} before hello",
                ProtocolError("the first request of a connection is hello"),
            )
            return
        service, loop = self._plane.service, self._plane.loop
        exchange, self._exchange = self._exchange, None
        try:
            session, welcome = service.welcome(self, request, self.peer, exchange)
        except FarpoolError as error:
            self._fail(request_id, error, request)
            if request.resume is None or not isinstance(error, AuthenticationFailed):
                self._plane.rationed.info("hello refused", peer=str(self.peer), reason=str(error))
                self.close("its hello was refused")
            return
        self.session = session
        if self._stream.encrypted and session.served is not None:
            session.served = dataclasses.replace(session.served, encrypted=True)
        self._plane.strangers.remove(self)
        self._stop_timer()
        if self.peer.pid is not None:
            sessions = service.life.sessions
            watch = ProcessWatch(loop, self.peer.pid, lambda: sessions.end(session, SessionEvent.DIED))
            session.watch_process(watch)
        log.info(
            "session resumed" if welcome.resumed else "session opened",
            session=session.id,
            peer=str(self.peer),
        )
        self._reply(request_id, welcome, request)

    def _await(self, request_id: int, reply: Awaitable[Reply], request: Request) -> None:
        async def finish() -> None:
            turns = self._plane.turns
            try:
                answer = await reply
                begun = turns.begin()
                self._reply(request_id, answer, request)
                turns.end(self._tenant, begun)
            except FarpoolError as error:
                self._fail(request_id, error, request)
            except Exception as error:  # noqa: BLE001  as in _take
                self._confess(request_id, error, request)

        task = self._plane.loop.create_task(finish())
        self._working.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if self.session is not None:
            # Its heartbeats may have waited behind the work: the client was waiting for us, and not silent.
            self._plane.service.hear(self.session)
        self.work()

    def _reply(self, request_id: int, reply: Reply, request: Request) -> None:
        if request.administrative or request.audited:
            self._plane.service.audit.act(self.peer, self.session, request)
        if request_id:
            self.send(encode_reply(request_id, reply))

    def _fail(self, request_id: int, error: FarpoolError, request: Request | None) -> None:
        if request is not None and (request.administrative or request.audited or isinstance(error, REFUSALS)):
            self._plane.service.audit.refusal(self.peer, self.session, request, error)
        if request_id:
            self.send(encode_error(request_id, error))

    def _confess(self, request_id: int, error: Exception, request: Request | None) -> None:
        """Say that a request failed by a fault of ours; without memory for words, by the end of the connection."""
        try:
            log.error("request failed", peer=str(self.peer), exc_info=error)
            self._fail(request_id, _internal(error), request)
        except MemoryError:
            if self._transport is not None:
                self._transport.abort()

    # Ends ---------------------------------------------------------------------------------------------

    def _refuse(self, reason: str, error: FarpoolError | None = None, alert: bytes | None = None) -> None:
        self._plane.rationed.warning("connection refused", peer=str(self.peer), reason=reason)
        if isinstance(error, REFUSALS):
            self._plane.service.audit.handshake(self.peer, error)
        if alert is not None:
            self._part(alert)
            return
        if error is not None:
            self.send(encode_error(0, error))
        self.close(reason)

    def give_way(self) -> None:
        """End a connection that has not said hello while so many newer ones came."""
        self._plane.strangers.remove(self)
        self._refuse(f"it has not said hello, and {MAX_STRANGERS} newer ones wait as well")

    def _no_hello(self) -> None:
        self._refuse(f"it did not say hello within {HELLO_SECONDS:g} s")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _internal(error: Exception) -> FarpoolError:
    if isinstance(error, MemoryError):
        return FarpoolError("the server's process has no memory left; give it more: ulimit -v, MemoryMax=")
    return FarpoolError(f"the server failed to answer ({type(error).__name__}: {error}); its log has more")
