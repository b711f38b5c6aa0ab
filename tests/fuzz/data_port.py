"""The tcp data port in this very process, which sees at once what the port's native code does to memory."""

from __future__ import annotations

import os
import socket
from typing import Self

from farpool.native.mapping import Mapping
from farpool.native.slab_table import SlabTable
from farpool.native.tcp_reactor import TcpReactor
from farpool.native.tcp_wire import pack_hello

PAGE = 4096
SECRET = bytes(range(32))
SESSION, FOREIGN_SESSION = 7, 8
GENERATION = 99


class Port:
    """A reactor with one slab in the middle of three pages, and one of another session."""

    def __init__(self) -> None:
        descriptor = os.memfd_create("pages")
        os.ftruncate(descriptor, 4 * PAGE)
        self.pages = Mapping(descriptor, 4 * PAGE, writable=True)
        os.close(descriptor)
        self.table = SlabTable(64)
        self.handle = self.table.insert(self.pages, self.pages.address + PAGE, PAGE, GENERATION, SESSION, writable=True)
        self.foreign = self.table.insert(
            self.pages, self.pages.address + 3 * PAGE, PAGE, GENERATION + 1, FOREIGN_SESSION, writable=True
        )
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.setblocking(False)
        self.address = self.listener.getsockname()
        self.reactor = TcpReactor(self.table, self.listener.fileno())
        self.hello = pack_hello(self.reactor.admit(SESSION, SECRET), SECRET)
        self.reactor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.reactor.stop()
        self.listener.close()

    def take(self, stream: bytes) -> bytes:
        """Send a connection's worth of requests, and return what came back until the port closed it."""
        received = b""
        with socket.create_connection(self.address, timeout=10) as connection:
            try:
                connection.sendall(self.hello + stream)
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(1 << 16):
                    received += piece
            except ConnectionError:
                pass  # closed for garbage, with some of it unread
        return received

    def check(self) -> None:
        """Fail if a byte outside the slab has changed."""
        pages = memoryview(self.pages)
        try:
            assert not any(pages[:PAGE])
            assert not any(pages[2 * PAGE :])
        finally:
            pages.release()
