"""The server half of cxl: it passes descriptors of slab files to clients that prove who they are.

Where slabs are extents of a device there is nothing to pass: clients, on other hosts too, open the device themselves.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farpool.protocol.addresses import MAX_SOCKET_PATH_BYTES
from farpool.protocol.errors import AuthenticationFailed, ProtocolError, ReadOnly, TransportUnavailable
from farpool.transports.connection_limits import ConnectionLimits, connection_limits
from farpool.transports.contract import Mode, ServedSession, ServedSlab, ServerContext
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.connections import MAX_STRANGERS, Connections
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest

__all__ = ["CxlServer"]

BACKLOG = 128
SESSION_CONNECTIONS = 8
"""A client has one, and for a moment those that it gave up."""
DESCRIPTORS_SHARE = 0.25
STRANGER_SECONDS = 5.0
"""How long a connection may stay that has not asked for anything with a known session's secret."""


class CxlServer:
    """Passes descriptors over a Unix socket of its own, beside the control plane's.

    Read-only grants get a descriptor that was opened read-only, so that the kernel enforces them.
    """

    def __init__(self) -> None:
        self._context: ServerContext | None = None
        self._listener: socket.socket | None = None
        self._path = ""
        self._arena = secrets.token_bytes(16)
        self._grants: dict[int, dict[int, tuple[ServedSlab, set[Mode]]]] = {}
        self._connections = Connections(ConnectionLimits(0, 0), lambda: False)
        self._passed = 0
        self._refused = 0

    async def start(self, context: ServerContext) -> None:
        """Bind the socket; a stale one of an earlier server is replaced. On a device there is none."""
        if context.device is not None:
            self._context = context
            return
        limits = connection_limits("cxl", context.settings, session=SESSION_CONNECTIONS, share=DESCRIPTORS_SHARE)
        self._connections = Connections(limits, context.several_tenants)
        path = f"{context.socket_path}.cxl"
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES - len(".new"):
            raise TransportUnavailable(f"the socket path {path} is too long for cxl's socket; shorten --unix")
        self._listener = _bind(path, context.socket_mode)
        self._context, self._path = context, path
        context.loop.add_reader(self._listener.fileno(), self._accept)

    async def stop(self) -> None:
        """Close the socket and remove its file."""
        if self._listener is None or self._context is None:
            return
        self._context.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._listener = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)  # noqa: PTH108  no await in between
        for connection in self._connections.all():
            self._drop(connection)

    def _accept(self) -> None:
        assert self._listener is not None
        assert self._context is not None
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._rest(error)
            return
        connection.setblocking(False)
        pushed_out = self._connections.add(connection)
        if pushed_out is not None:
            reason = f"it has asked for nothing as a session, and {MAX_STRANGERS} newer ones wait as well"
            self._context.report("crowd", {"peer": _peer(pushed_out), "reason": reason})
            self._drop(pushed_out)
        self._context.loop.add_reader(connection.fileno(), self._serve, connection)
        self._context.loop.call_later(STRANGER_SECONDS, self._drop_stranger, connection)

    def _rest(self, error: OSError) -> None:
        """Out of descriptors: leave the listener alone for a moment, since it stays ready."""
        assert self._context is not None
        assert self._listener is not None
        self._context.report("out of file descriptors", {"peer": "", "number": error.errno or 0})
        loop, listener = self._context.loop, self._listener
        loop.remove_reader(listener.fileno())

        def listen_again() -> None:
            if self._listener is listener:
                loop.add_reader(listener.fileno(), self._accept)

        loop.call_later(0.1, listen_again)

    def _drop_stranger(self, connection: socket.socket) -> None:
        if self._connections.is_stranger(connection):
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        assert self._context is not None
        if self._connections.remove(connection):
            self._context.loop.remove_reader(connection.fileno())
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one request; whatever is wrong with it ends this connection alone."""
        assert self._context is not None
        try:
            packet = connection.recv(descriptors.REQUEST_BYTES + 1)
            if not packet:
                self._drop(connection)
                return
            request = DescriptorRequest.decode(packet)
        except BlockingIOError:
            return
        except (OSError, ProtocolError) as error:
            self._refused += 1
            self._context.report("garbage", {"peer": _peer(connection), "reason": str(error)})
            self._drop(connection)
            return
        self._answer(connection, request)

    def _answer(self, connection: socket.socket, request: DescriptorRequest) -> None:
        status, descriptor = self._admit(connection, request), None
        if status == descriptors.OK:
            status, descriptor = self._open(connection, request)
        if status == descriptors.OK:
            self._passed += 1
        elif status != descriptors.NAMED:
            self._refused += 1
        try:
            descriptors.send_answer(connection, DescriptorAnswer(status, self._arena), descriptor)
        except OSError:
            self._drop(connection)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _admit(self, connection: socket.socket, request: DescriptorRequest) -> int:
        """Check who asks, and whether there is room for one more connection of his; return a status."""
        assert self._context is not None
        if request.session == descriptors.NOBODY:
            return descriptors.NAMED
        session = self._context.session_of(request.session)
        if session is None or not hmac.compare_digest(session.secret, request.secret):
            refusal = AuthenticationFailed("the session and secret of its request are not of a session that is open")
            self._context.refused("descriptor", refusal, _described(connection))
            return descriptors.REFUSED
        status = self._connections.know(connection, session)
        if (full := descriptors.refusal_for_number(status)) is not None:
            about = {"session": session.id, "tenant": session.tenant}
            self._context.refused("descriptor", full, _described(connection) | about)
        return status

    def _open(self, connection: socket.socket, request: DescriptorRequest) -> tuple[int, int | None]:
        """Check the request against what was granted, and open the file."""
        assert self._context is not None
        try:
            if request.slab == descriptors.GENERATIONS:
                return descriptors.OK, os.open(self._context.generations_path, os.O_RDONLY | os.O_CLOEXEC)
            slab, modes = self._grants.get(request.slab, {}).get(request.session, (None, set[Mode]()))
            mode: Mode = "rw" if request.writable else "r"
            session = self._context.session_of(request.session)
            if slab is not None and slab.generation == request.generation and mode == "rw" and modes == {"r"}:
                about = {"slab": slab.id, "session": request.session, "tenant": session.tenant if session else None}
                error = ReadOnly("its session has the slab for reading only, and asked for a descriptor to write with")
                self._context.refused("descriptor", error, _described(connection) | about)
            if slab is None or slab.generation != request.generation or not modes & {mode, "rw"}:
                return descriptors.STALE, None
            return descriptors.OK, slab.open_descriptor(mode)
        except OSError as error:
            shortage = error.errno in (errno.EMFILE, errno.ENFILE)
            return (descriptors.NO_DESCRIPTORS if shortage else descriptors.STALE), None

    def offer(self) -> Mapping[str, Any]:
        """Return where the memory is: which device, or where descriptors are passed and of which arena."""
        assert self._context is not None
        device = self._context.device
        if device is None:
            return {"socket": self._path, "arena": self._arena, "coherence": self._context.coherence}
        named = {"path": device.path, "arena": device.arena, "incarnation": device.incarnation}
        return {"device": named, "coherence": self._context.coherence}

    def negotiate(self, session: ServedSession, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse: there is nothing to agree on."""
        raise ProtocolError("cxl has nothing to negotiate")

    def publish(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Mapping[str, Any]:
        """Note the grant; the client fetches its descriptor with it, or maps its extent of the device."""
        assert self._context is not None
        if self._context.device is not None:
            return {**self.offer(), **_words_of(slab, session), "offset": slab.offset}
        _, modes = self._grants.setdefault(slab.id, {}).setdefault(session.id, (slab, set[Mode]()))
        modes.add(mode)
        return {
            **self.offer(),
            **_words_of(slab, session),
            "secret": session.secret,
            "generations_nbytes": self._context.generations_nbytes,
            "watched": self._context.watched_offset,
        }

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Forget the grant; what the client has mapped it keeps until it lets go."""
        sessions = self._grants.get(slab.id, {})
        sessions.pop(session_id, None)
        if not sessions:
            self._grants.pop(slab.id, None)

    def revoke(self, slab: ServedSlab) -> None:
        """Forget every grant of the slab. Accesses fail by the generation word that the server has changed."""
        self._grants.pop(slab.id, None)

    def end_session(self, session_id: int) -> None:
        """Close the session's connections."""
        for connection in self._connections.of_session(session_id):
            self._drop(connection)

    def holders_may_map(self) -> bool:
        """Return True: a freed slab's pages are in use until its holders let go."""
        return True

    def counters(self) -> Mapping[str, int]:
        """Return how many descriptors were passed and refused, and the connections that are open."""
        return {"descriptors": self._passed, "refused": self._refused, "connections": len(self._connections)}


def _words_of(slab: ServedSlab, session: ServedSession) -> dict[str, int]:
    """Return which words say that the slab and the session live."""
    return {"slot": slab.slot, "session": session.id, "session_word": session.word}


def _bind(path: str, mode: int) -> socket.socket:
    """Bind beside the place and rename, so that the socket listens from the moment it can be seen."""
    fresh = Path(f"{path}.new")
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
        try:
            fresh.unlink(missing_ok=True)
            listener.bind(str(fresh))
            undo.callback(fresh.unlink, missing_ok=True)
            fresh.chmod(mode)
            listener.listen(BACKLOG)
            fresh.rename(path)
        except OSError as error:
            raise TransportUnavailable(
                f"cxl's socket {path} cannot be made ({error.strerror}); choose another --unix"
            ) from None
        undo.pop_all()
        return listener


def _peer(connection: socket.socket) -> str:
    return str(_described(connection)["peer"])


def _described(connection: socket.socket) -> dict[str, Any]:
    """Return who is on the other end, as the kernel says."""
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    except OSError:
        return {"peer": "unix"}
    pid, uid = int.from_bytes(credentials[:4], "little"), int.from_bytes(credentials[4:8], "little")
    return {"peer": f"unix:pid={pid},uid={uid}", "pid": pid or None, "uid": uid}
