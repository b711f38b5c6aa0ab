"""Take over from a running server: ``farpool serve --takeover``.

The running server passes its listening sockets and the lock of the arena, and ends without ending a session: clients
find their connections closed, come back over the same sockets and resume. The other side is
:mod:`farpool.server.handover`. Blocking calls: there is nothing else to do yet.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any, Final, Self, TypeVar

from farpool.protocol.errors import FarpoolError, from_wire
from farpool.protocol.framing import MAX_FRAME_BYTES, FrameDecoder, decode_payload
from farpool.protocol.message_base import Done, Reply, Request
from farpool.protocol.messages import (
    ERROR,
    PROTOCOL_VERSION,
    REPLY,
    Hello,
    Welcome,
    decode_reply_fields,
    encode_request,
)
from farpool.protocol.takeover_messages import TAKEOVER_VERSION, Inheritance, LetGo, Takeover
from farpool.server.likeness import differences, exposure_of
from farpool.server.schema import SCHEMA_VERSION
from farpool.server.settings import ConfigurationError, ServerSettings

__all__ = ["Inherited", "take_over"]

R = TypeVar("R", bound=Reply)

ANSWER_SECONDS: Final = 10.0
LET_GO_SECONDS: Final = 60.0
"""How long the running server may take to end its work in flight and let go of the arena."""

MOST_DESCRIPTORS: Final = 16


class Inherited:
    """What the running server has passed. Whoever takes a part of it owns it."""

    def __init__(self, descriptors: dict[str, int]) -> None:
        self._descriptors = descriptors

    def take(self, name: str) -> int | None:
        """Return the descriptor of that name, once."""
        return self._descriptors.pop(name, None)

    def take_listener(self, name: str) -> socket.socket | None:
        """Return the listening socket of that name, once."""
        descriptor = self.take(name)
        if descriptor is None:
            return None
        listener = socket.socket(fileno=descriptor)
        listener.setblocking(False)
        return listener

    def close(self) -> None:
        """Close what nobody took. May be called twice."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])


def take_over(settings: ServerSettings) -> Inherited:
    """Take over from the server at the socket that *settings* name, and return when it has let go of everything.

    Raises:
        ConfigurationError: nobody serves there, or not this arena, or in another version, or (unless *settings* say
            ``insecure``) it lets others in than these would; that server goes on.
    """
    with _Line(settings.unix) as line:
        line.ask(Hello(protocol=PROTOCOL_VERSION, client="farpool serve --takeover", pid=os.getpid()), Welcome)
        request = Takeover(
            version=TAKEOVER_VERSION,
            catalog=SCHEMA_VERSION,
            arena=os.path.realpath(settings.arena),
            state_dir=os.path.realpath(settings.state_dir),
        )
        answer = line.ask(request, Inheritance)
        inherited = Inherited(dict(zip(answer.descriptors, line.take_descriptors(), strict=False)))
        try:
            if not settings.insecure:
                _refuse_differences(settings, answer)
            line.ask(LetGo(), Done)
            line.wait_for_end(answer.pid)
        except BaseException:
            inherited.close()
            raise
    return inherited


def _refuse_differences(settings: ServerSettings, running: Inheritance) -> None:
    if found := differences(running.exposure, exposure_of(settings)):
        raise ConfigurationError(
            f"cannot take over from the server at {settings.unix}, whose settings differ: {'; '.join(found)}: "
            "use its configuration, stop it to change them, or take over all the same with --insecure"
        )


class _Line:
    """A control connection for a few requests, one at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._descriptors: list[int] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(
                f"no server to take over from answers at {path} ({error.strerror or error}); start without --takeover, "
                "or name its socket with --unix"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        for descriptor in self.take_descriptors():
            os.close(descriptor)

    def take_descriptors(self) -> list[int]:
        """Return the descriptors that have come, once."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def ask(self, request: Request, reply: type[R]) -> R:
        """Return the reply to *request*; the server's refusal is a mistake in the configuration."""
        try:
            self._socket.sendall(encode_request(1, request))
            while True:
                kind, *rest = self._receive()
                if kind == REPLY:
                    return decode_reply_fields(reply, rest[1])
                if kind == ERROR:
                    raise from_wire(rest[1], rest[2], rest[3])
        except FarpoolError as error:
            raise ConfigurationError(f"cannot take over from the server at {self._path}: {error.message}") from None
        except OSError as error:
            raise ConfigurationError(
                f"cannot take over from the server at {self._path}: it did not answer {request.operation} "
                f"({error.strerror or error})"
            ) from None

    def _receive(self) -> list[Any]:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, MOST_DESCRIPTORS)
            self._descriptors += descriptors
            if not data:
                raise ConnectionResetError("it closed the connection")
            for payload in self._decoder.feed(data):
                return decode_payload(payload)

    def wait_for_end(self, pid: int) -> None:
        """Wait until the server has closed its end, the last thing that it does."""
        self._socket.settimeout(LET_GO_SECONDS)
        try:
            with contextlib.suppress(ConnectionResetError):
                while self._socket.recv(65536):
                    pass
        except TimeoutError:
            raise ConfigurationError(
                f"the server with pid {pid} has not let go of its arena within {LET_GO_SECONDS:g} s; look at its log, "
                f"and end it with: kill -9 {pid}"
            ) from None
