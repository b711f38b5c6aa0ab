"""The server half of tcp: one listening socket, and the native reactor behind it."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Mapping
from typing import Any

from farpool.native.slab_table import SlabTable
from farpool.native.tcp_reactor import TcpReactor
from farpool.native.tcp_wire import VERSION
from farpool.protocol.addresses import parse_host_port
from farpool.protocol.errors import (
    AuthenticationFailed,
    FarpoolError,
    ProtocolError,
    QuotaExceeded,
    ReadOnly,
    TransportUnavailable,
)
from farpool.transports.connection_limits import connection_limits
from farpool.transports.contract import Mode, ServedSession, ServedSlab, ServerContext

__all__ = ["TcpServer"]

BACKLOG = 1024
SETTINGS = "[transport_settings.tcp]"
DEFAULT_LISTEN = "127.0.0.1:0"
DEFAULT_THREADS = 2

SESSION_CONNECTIONS = 64
"""A client opens 8 for all its threads, and one for each event loop."""

DESCRIPTORS_SHARE = 0.5

ACTS = {"read-only": "write", "no TLS": "handshake"}
"""What was refused, as the audit log calls it, where that is not the hello."""

REASONS = {
    "in clear": "its session is encrypted, and this connection is not",
    "silent": "the client said no hello in time",
    "cut short": "the client left after {} bytes of its hello",
    "out of turn": "request {} is unknown, comes before the hello or after it, or has too many parts",
    "crowd": "it has not said hello, and {} newer ones wait as well",
    "out of file descriptors": "none is left with {} data connections open; raise RLIMIT_NOFILE",
    "connection limit": f"{{}} data connections are open, which is the limit: max_connections in {SETTINGS}",
    "session's connection limit": f"its session has {{}} data connections, which is the limit: "
    f"max_session_connections in {SETTINGS}",
    "tenant's connection limit": f"its tenant has {{}} data connections, and no more are left for others: "
    f"max_connections in {SETTINGS}",
}
"""What events mean, with the number of each."""


class TcpServer:
    """Serves slabs over data connections. One attachment of the native table for each (slab, session, mode)."""

    def __init__(self) -> None:
        self._table = SlabTable()
        self._reactor: TcpReactor | None = None
        self._listener: socket.socket | None = None
        self._context: ServerContext | None = None
        self._address: dict[str, Any] = {}
        self._slots: dict[int, int] = {}
        self._shares: dict[str, int] = {}
        self._handles: dict[int, dict[tuple[int, Mode], int]] = {}
        self._published: dict[int, int] = {}
        """Ids of the slabs that are published, by the generation of their memory."""
        self._slabs: dict[int, int] = {}
        """Of each handle."""

    async def start(self, context: ServerContext) -> None:
        """Listen, and start the reactor's threads."""
        limits = connection_limits("tcp", context.settings, session=SESSION_CONNECTIONS, share=DESCRIPTORS_SHARE)
        listener = _listen(str(context.settings.get("listen", DEFAULT_LISTEN)))
        reactor = TcpReactor(
            self._table,
            listener.fileno(),
            threads=int(context.settings.get("threads", DEFAULT_THREADS)),
            max_connections=limits.server,
            max_session_connections=limits.session,
            encryptor=context.encryptor,
        )
        reactor.start()
        context.loop.add_reader(reactor.fileno(), self._report_events)
        context.loop.add_reader(reactor.changes(), self._report_changes)
        self._context, self._listener, self._reactor = context, listener, reactor
        host, port = listener.getsockname()[:2]
        # An empty host stands for the one that the client reached the control plane at.
        self._address = {
            "host": "" if host in ("0.0.0.0", "::") else host,  # noqa: S104  a comparison
            "port": port,
            "tls": context.encryptor is not None,
        }

    async def stop(self) -> None:
        """Close every data connection and the listening socket."""
        reactor, self._reactor = self._reactor, None
        if reactor is not None and self._context is not None:
            self._context.loop.remove_reader(reactor.fileno())
            self._context.loop.remove_reader(reactor.changes())
            reactor.stop()
        if self._listener is not None:
            self._listener.close()

    def _report_events(self) -> None:
        if self._reactor is not None and self._context is not None:
            for kind, peer, number, session in self._reactor.events():
                error = _refusal(kind, number)
                if error is None:
                    self._context.report(kind, {"peer": peer, "reason": _explain(kind, number)})
                else:
                    about = {"peer": peer, **self._known(kind, number, session)}
                    self._context.refused(ACTS.get(kind, "hello"), error, about)

    def _known(self, kind: str, number: int, session: int) -> dict[str, Any]:
        """Return what the audit log should have of a refusal besides the peer."""
        assert self._reactor is not None
        assert self._context is not None
        about: dict[str, Any] = {"more": self._reactor.overlooked()}
        if session:
            served = self._context.session_of(session)
            about |= {"session": session, "tenant": None if served is None else served.tenant}
        if kind == "read-only":
            about["slab"] = self._published.get(number)
        return about

    def _report_changes(self) -> None:
        if self._reactor is not None and self._context is not None:
            for slab in dict.fromkeys(self._slabs.get(handle) for handle in self._reactor.changed()):
                if slab is not None:
                    self._context.changed(slab)

    def watch(self, slab: ServedSlab, mark: int) -> None:
        """Let stores to the slab wake those who wait for a word of it."""
        for handle in self._handles.get(slab.id, {}).values():
            self._table.watch(handle, mark)

    def offer(self) -> Mapping[str, Any]:
        """Return the data port."""
        return self._address

    def negotiate(self, session: ServedSession, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse: there is nothing to agree on."""
        raise ProtocolError("tcp has nothing to negotiate")

    def publish(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Mapping[str, Any]:
        """Add the slab to the native table for this session; the same attachment keeps its handle."""
        assert self._reactor is not None
        assert self._context is not None
        slot = self._slots.get(session.id)
        if slot is None:
            share = self._shares.setdefault(session.tenant, len(self._shares) + 1)
            self._reactor.share_out(self._context.several_tenants())
            slot = self._slots[session.id] = self._reactor.admit(session.id, session.secret, session.encrypted, share)
        self._published[slab.generation] = slab.id
        handles = self._handles.setdefault(slab.id, {})
        handle = handles.get((session.id, mode))
        if handle is None:
            memory = slab.memory()
            handle = handles[session.id, mode] = self._table.insert(
                memory, memory.address, slab.nbytes, slab.generation, session.id, mode == "rw"
            )
            self._slabs[handle] = slab.id
        return {**self._address, "slot": slot, "secret": session.secret, "handle": handle}

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Take the slab from one session."""
        handles = self._handles.get(slab.id, {})
        for key in [key for key in handles if key[0] == session_id]:
            self._remove(handles.pop(key))
        if not handles:
            self._handles.pop(slab.id, None)
            self._published.pop(slab.generation, None)

    def revoke(self, slab: ServedSlab) -> None:
        """Take the slab from every session; no operation on its memory is in flight afterwards."""
        self._published.pop(slab.generation, None)
        for handle in self._handles.pop(slab.id, {}).values():
            self._remove(handle)

    def _remove(self, handle: int) -> None:
        self._table.remove(handle)
        del self._slabs[handle]

    def end_session(self, session_id: int) -> None:
        """Close the session's data connections."""
        slot = self._slots.pop(session_id, None)
        if slot is not None and self._reactor is not None:
            self._reactor.expel(slot)

    def holders_may_map(self) -> bool:
        """Return False: clients never reach the memory itself."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Return the reactor's counters."""
        return self._reactor.counters() if self._reactor is not None else {}


def _refusal(kind: str, number: int) -> FarpoolError | None:
    """Return what a client would be told that wanted what it may not have; None for an event that is no refusal."""
    match kind:
        case "refused" if number == VERSION:
            return AuthenticationFailed(_explain(kind, number))
        case "in clear":
            return AuthenticationFailed(_explain(kind, number))
        case "no TLS" if _refuses_certificate(number):
            return AuthenticationFailed(f"the client's certificate was refused: {_reason_of_tls(number)}")
        case "connection limit" | "session's connection limit" | "tenant's connection limit":
            return QuotaExceeded(_explain(kind, number), limit=number)
        case "read-only":
            return ReadOnly("its session has the slab for reading only; the connection's first such try is noted")
        case _:
            return None


def _explain(kind: str, number: int) -> str:
    """Return what an event of the reactor means, in a sentence for the log."""
    match kind:
        case "garbage":
            began = number.to_bytes(2, "little")
            return f"what came begins with {began!r}: no client of farpool's data port, {_likely_client(began)}"
        case "refused" if number != VERSION:
            return f"the client speaks version {number} of the data protocol, this server {VERSION}"
        case "refused":
            return "the session and secret of its hello are not of a session that is open"
        case "no TLS":
            return f"the TLS handshake failed: {_reason_of_tls(number)}"
        case _:
            return REASONS.get(kind, "number {}").format(number)


def _reason_of_tls(number: int) -> str:
    from farpool.native.tls import reason_of_failure  # noqa: PLC0415  there is one only where TLS was built

    return reason_of_failure(number)


def _refuses_certificate(number: int) -> bool:
    from farpool.native.tls import refuses_certificate  # noqa: PLC0415  as above

    return refuses_certificate(number)


def _likely_client(began: bytes) -> str:
    if began == b"\x16\x03":
        return "but perhaps one that speaks TLS"
    if began in {b"GE", b"PO", b"HE", b"PU", b"OP", b"DE", b"CO", b"PA", b"TR", b"PR"}:
        return "but perhaps one that speaks HTTP"
    return "or of another version"


def _listen(address: str) -> socket.socket:
    host, port = parse_host_port(address, what="the tcp transport's listen address")
    try:
        family, kind, proto, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK, proto))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(BACKLOG)
            undo.pop_all()
            return listener
    except OSError as error:
        mend = "another program has the port: choose another with --data-listen, or port 0"
        hint = mend if error.errno == errno.EADDRINUSE else "choose another address with --data-listen"
        raise TransportUnavailable(f"the tcp data port {address} cannot be opened ({error.strerror}); {hint}") from None
