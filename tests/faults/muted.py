"""A road to a server that can be closed without a word: connections through it stay open, and nothing passes."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["MutedRoad"]


class MutedRoad:
    """Forwards TCP connections to ``HOST:PORT`` until ``mute`` is called; a thread of its own does it."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._sockets: list[socket.socket] = [self._listener, self._wake, self._woken]
        self._muted = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.port: int = self._listener.getsockname()[1]

    def mute(self) -> None:
        """Forward nothing any more; connections stay as they are, and new ones are accepted by the kernel alone."""
        self._muted.set()
        self._wake.send(b"x")
        self._thread.join()

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._muted.is_set():
            self.mute()
        self._selector.close()
        for each in self._sockets:
            each.close()

    def _run(self) -> None:
        while not self._muted.is_set():
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, socket.socket):
                    self._forward(key.fileobj, key.data)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        far = socket.create_connection(self._target)
        self._sockets += [near, far]
        self._selector.register(near, selectors.EVENT_READ, far)
        self._selector.register(far, selectors.EVENT_READ, near)

    def _forward(self, source: object, target: socket.socket) -> None:
        assert isinstance(source, socket.socket)
        if source.fileno() < 0:
            return  # the other end closed it, in this turn
        try:
            data = source.recv(1 << 16)
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        self._selector.unregister(source)
        target.close()
        if target in {key.fileobj for key in self._selector.get_map().values()}:
            self._selector.unregister(target)
