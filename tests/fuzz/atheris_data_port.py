"""Fuzzing of the tcp data port in its own process: ``python tests/fuzz/atheris_data_port.py CORPUS -runs=100000``.

The reactor is native and shows no coverage; what it gets is built from the input field by field, and what it must never
touch is looked at after each connection.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import sys
from pathlib import Path
from typing import Any

import atheris as untyped_atheris  # type: ignore[import-untyped]

from farpool.native.mapping import Mapping
from farpool.native.slab_table import SlabTable
from farpool.native.tcp_reactor import TcpReactor
from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, STATUSES, pack_hello, pack_request, unpack_answer

atheris: Any = untyped_atheris  # it ships no types

PAGE = 4096
SECRET = bytes(range(32))
SESSION, FOREIGN_SESSION = 7, 8
GENERATION = 99
EDGES = [0, 1, 8, 64, PAGE - 8, PAGE - 1, PAGE, PAGE + 1, 2**32, 2**63 - 1, 2**63, 2**64 - PAGE, 2**64 - 8, 2**64 - 1]


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


@atheris.instrument_func  # type: ignore[untyped-decorator]
def number_of(provider: Any) -> int:
    """Draw a number that is often near an edge."""
    if provider.ConsumeBool():
        return int(provider.PickValueInList(EDGES))
    return int(provider.ConsumeIntInRange(0, 2**64 - 1))


@atheris.instrument_func  # type: ignore[untyped-decorator]
def request_of(provider: Any) -> bytes:
    """Draw one request with what stands behind its header."""
    operation = provider.ConsumeIntInRange(0, max(OPERATIONS.values()) + 1)
    parts = [(number_of(provider), number_of(provider)) for _ in range(provider.ConsumeIntInRange(0, 4))]
    vector = operation in (OPERATIONS["readv"], OPERATIONS["writev"])
    total = sum(length for _, length in parts) % 2**64
    header = pack_request(
        operation,
        handle=provider.PickValueInList([PORT.handle] * 4 + [PORT.foreign, 63, 64, 2**32 - 1]),
        generation=provider.PickValueInList([GENERATION] * 4 + [GENERATION + 1, 0]),
        offset=number_of(provider),
        length=total if vector and provider.ConsumeBool() else number_of(provider),
        operand=len(parts) if vector and provider.ConsumeBool() else number_of(provider),
    )
    behind = b"".join(struct.pack("<QQ", *part) for part in parts) if vector else b""
    return header + behind + bytes(provider.ConsumeBytes(provider.ConsumeIntInRange(0, 200)))


@atheris.instrument_func  # type: ignore[untyped-decorator]
def note(received: bytes) -> int:
    """Take a branch for each kind of answer, so that inputs which bring a new one are kept."""
    place = kinds = 0
    while len(received) - place >= ANSWER_BYTES:
        answer = unpack_answer(received[place : place + ANSWER_BYTES])
        for status in STATUSES:
            if answer["status"] == status:
                kinds |= 1 << status
        place += ANSWER_BYTES + answer["length"]
    return kinds


def one_input(data: bytes) -> None:
    """Let the port take what the input says; bytes outside the slab must stay, and the port must answer the next."""
    provider = atheris.FuzzedDataProvider(data)
    stream = b"".join(request_of(provider) for _ in range(provider.ConsumeIntInRange(1, 4)))
    note(PORT.take(stream + bytes(provider.ConsumeBytes(100))))
    PORT.check()
    assert len(PORT.take(b"")) == ANSWER_BYTES


if __name__ == "__main__":
    PORT = Port()
    for number in range(32):
        Path(sys.argv[1], f"seed-{number}").write_bytes(random.Random(number).randbytes(1000))
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
