"""A session's connection to the server's socket: one request at a time.

Whatever disturbs a request ends the connection, so that nobody ever reads the answer to
another's request; the next operation opens a new one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from farpool.protocol.errors import ForkedSession, StaleSlab
from farpool_stream.wire import (
    ANSWER,
    HELLO,
    MAGIC,
    REQUEST,
    Bytes,
    Left,
    Request,
    Status,
    receive,
    receive_into,
)


class Line:
    """The session's connection to the server's socket. Thread-safe: an operation has it to itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peer: socket.socket | None = None
        self._pid = os.getpid()
        self._closed = False
        self.lost = 0
        """Counts connections that ended: a region that was attached before the last did attaches again."""

    def check(self) -> None:
        """Raise if the line cannot be used any more, or not by this process."""
        if self._pid != os.getpid():
            raise ForkedSession("this session belongs to the parent process; call farpool.connect in the child")
        if self._closed:
            raise StaleSlab("this session is closed; connect again")

    def is_open(self) -> bool:
        """Tell whether there is a connection that has not ended. Between requests it holds no bytes."""
        if self._peer is None:
            return False
        try:
            self._peer.settimeout(0)
            self._peer.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        self._drop()
        return False

    @contextmanager
    def held(self, left: Left) -> Generator[None]:
        """Have the line to oneself; an operation that does not end well ends the connection."""
        if not self._lock.acquire(timeout=left()):
            raise TimeoutError
        try:
            self.check()
            yield
        except BaseException:
            self._drop()
            raise
        finally:
            if self._closed:
                self._drop()
            self._lock.release()

    def connect(self, params: Mapping[str, Any], left: Left) -> None:
        """Open a connection as the session that *params* name."""
        self.check()
        self._peer = peer = socket.socket(socket.AF_UNIX)
        try:
            peer.settimeout(left())
            peer.connect(params["path"])
            peer.sendall(HELLO.pack(MAGIC, params["session"], params["secret"]))
            receive(peer, ANSWER.size, left)
        except BaseException:
            self._drop()
            raise

    def ask(self, request: Request, payload: Bytes | None, target: Bytes | None, left: Left) -> tuple[Status, int]:
        """Send one request and take its answer."""
        assert self._peer is not None
        self._peer.settimeout(left())
        self._peer.sendall(REQUEST.pack(*request))
        if payload is not None:
            self._peer.settimeout(left())
            self._peer.sendall(payload.data)
        status, word = ANSWER.unpack(receive(self._peer, ANSWER.size, left))
        if status == Status.OK and target is not None:
            receive_into(self._peer, target, left)
        return Status(status), word

    def close(self) -> None:
        """End the connection; a forked child closes its copy of the descriptor alone."""
        self._closed = True
        if self._pid != os.getpid():
            self._drop()
            return
        peer = self._peer
        if peer is not None:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in it
        if self._lock.acquire(timeout=1):  # else whoever holds it drops the connection
            self._drop()
            self._lock.release()

    def _drop(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            self.lost += 1
