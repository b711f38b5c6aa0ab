"""A server under attack, with two well-behaved neighbours whose bytes and operations must stay whole.

What strangers send goes out over plain sockets. ``FARPOOL_FUZZ_SECONDS`` makes the bounded runs longer: about that
many seconds for each test.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from tests.conftest import settle, traces_of

import farpool
from farpool.client.pool import Pool
from farpool.client.slab import Slab
from farpool.native.tcp_wire import ANSWER_BYTES, MAGIC, STATUSES, pack_hello, pack_request, unpack_answer
from farpool.native.tcp_wire import OPERATIONS as DATA_OPERATIONS
from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import OPERATIONS, Hello, encode_request
from farpool.server.embedded import EmbeddedServer

SECONDS = float(os.environ.get("FARPOOL_FUZZ_SECONDS", "0"))
"""How long each test should fuzz; 0 is the bounded, deterministic run."""

WITHIN = 20.0
"""Seconds in which a server has to do what it must do; only a failure takes so long."""

GROWTH = 32 << 20
"""Bytes that a server may grow by under a module's attacks: far less than a leak of any of them."""

SLAB_BYTES = 64 << 10

NBYTES = 8192
"""Size of the slab that strangers may write at the data port."""


DATA_NAMES = {number: name for name, number in DATA_OPERATIONS.items()}

# What strangers may say: values of any kind, and requests with some of their parts right.
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=40),
)
TREES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.one_of(st.text(max_size=10), st.binary(max_size=10)), inner, max_size=5),
    ),
    max_leaves=8,
)
FIELDS = sorted({field for cls in OPERATIONS.values() for field in cls.__struct_fields__})
REQUESTS = st.tuples(
    st.one_of(st.just(0), TREES),
    st.one_of(st.integers(0, 2**64 - 1), TREES),
    st.one_of(st.sampled_from(sorted(OPERATIONS)), TREES),
    st.one_of(st.dictionaries(st.sampled_from(FIELDS), TREES, max_size=6), TREES),
).map(list)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of a long run their time."""
    for item in items:
        if SECONDS and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(120 + 10 * SECONDS))


def bounded(examples: int) -> settings:
    """Return the settings of one test: *examples* of them, and about fifty a second in a long run."""
    return settings(
        max_examples=max(examples, int(SECONDS * 50)),
        deadline=None,
        derandomize=not SECONDS,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Neighbour:
    """A session that keeps to the protocol, and looks after its bytes."""

    def __init__(self, url: str, transport: str) -> None:
        self.pool: Pool = farpool.connect(url, transport=transport)
        self.slab = self.pool.allocate(SLAB_BYTES, name=f"neighbour-{transport}")
        self._content = bytearray(random.Random(transport).randbytes(SLAB_BYTES))
        self._turn = 0
        self.slab.write(self._content)

    def check(self) -> None:
        """Read and change the slab, and make and free another: all must be as if nobody else were there."""
        self._turn += 1
        assert self.slab.read(SLAB_BYTES) == self._content, "a neighbour's bytes were changed"
        place = 64 + self._turn % 1000 * 64
        change = self._turn.to_bytes(8, "little") * 8
        self.slab.write(change, place)
        self._content[place : place + 64] = change
        before = int.from_bytes(self._content[:8], "little")
        assert self.slab.fetch_add(0, 1) == before
        self._content[:8] = ((before + 1) % 2**64).to_bytes(8, "little")
        other = self.pool.allocate(4096)
        assert other.read(4096) == bytes(4096), "a fresh slab was not empty"
        other.free()


class Target:
    """The server, and what is known of its health."""

    def __init__(self, server: EmbeddedServer, neighbours: list[Neighbour]) -> None:
        self.server = server
        self.neighbours = neighbours
        self._known = {neighbour.slab.id for neighbour in neighbours}

    def check(self) -> None:
        """Fail unless server and neighbours are unharmed; remove what strangers left in the pool."""
        for neighbour in self.neighbours:
            neighbour.check()
        pool = self.neighbours[0].pool
        for info in pool.slabs():
            if info.id not in self._known and info.lease != "session" and info.state != "reclaiming":
                pool.open(info.id).free()

    def address(self, over: str) -> tuple[str, int] | str:
        """Return where the control plane is reached over ``tcp`` or ``unix``."""
        if over == "unix":
            return self.server.url.removeprefix("unix://")
        host, _, port = self.server.tcp_url.removeprefix("farpool://").rpartition(":")
        return host, int(port)

    def connect(self, over: str = "tcp") -> socket.socket:
        """Return a plain connection to the control plane."""
        return connect_to(self.address(over))

    def talk(self, *pieces: bytes, over: str = "tcp") -> list[list[Any]]:
        """Send *pieces* to the control plane over a connection of their own; return the messages that came back."""
        with self.connect(over) as connection:
            return messages_in(exchange(connection, *pieces))

    def log(self, since: int = 0) -> list[dict[str, Any]]:
        """Return the server's log entries after its first *since* bytes."""
        return [json.loads(line) for line in self.server.log()[since:].splitlines()]

    def logged_once(self, since: int, peer: str) -> dict[str, Any]:
        """Return the one entry about *peer*, once it is there; more than one is a failure."""

        def unseen() -> set[str]:
            return {"nothing was logged"} - {"nothing was logged" for entry in self.log(since) if is_about(entry, peer)}

        assert not settle(unseen, set(), WITHIN)
        entries = [entry for entry in self.log(since) if is_about(entry, peer)]
        assert len(entries) == 1, entries
        return entries[0]

    def memory(self, field: str = "RssAnon") -> int:
        """Return the server's memory in bytes: ``RssAnon`` now, ``VmHWM`` at its peak."""
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(status.split(f"{field}:", 1)[1].split()[0]) << 10

    def forget_peak(self) -> int:
        """Let the peak begin anew; return it as it is now."""
        Path(f"/proc/{self.server.pid}/clear_refs").write_text("5")
        return self.memory("VmHWM")


def is_about(entry: dict[str, Any], peer: str) -> bool:
    """Tell whether a log entry names the peer, or one of the audit log does that a data plane has made.

    The opening of a session is no complaint.
    """
    named = entry.get("address" if entry["event"] == "audit" and "transport" in entry else "peer")
    return named == peer and entry["event"] != "session opened"


def connect_to(address: tuple[str, int] | str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """Return a connection to a TCP or Unix address; every wait on it is bounded."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family, kind)
    connection.settimeout(WITHIN)
    connection.connect(address)
    if family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def name_of(connection: socket.socket) -> str:
    """Return how the server's log names our end."""
    host, port = connection.getsockname()[:2]
    return f"{host}:{port}"


def exchange(connection: socket.socket, *pieces: bytes) -> bytes:
    """Send each piece while reading what comes, then half-close; return all that came until the server closed."""
    waiting = [memoryview(piece) for piece in pieces if piece]
    received = bytearray()
    end = time.monotonic() + WITHIN
    half_closed = False
    while True:
        if not waiting and not half_closed:
            half_closed = True
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        left = end - time.monotonic()
        assert left > 0, "the server neither answers nor closes the connection"
        readable, writable, _ = select.select([connection], [connection] if waiting else [], [], left)
        if writable:
            try:
                waiting[0] = waiting[0][connection.send(waiting[0], socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                continue
            except ConnectionError:
                waiting.clear()  # it was closed with bytes of ours unread; what it said before is still to be read
                continue
            if not waiting[0]:
                del waiting[0]
        if readable:
            try:
                piece = connection.recv(1 << 16, socket.MSG_DONTWAIT)
            except ConnectionResetError:
                return bytes(received)
            if not piece:
                return bytes(received)
            received += piece


def pour(connection: socket.socket, batch: bytes, *, most: int) -> None:
    """Send *batch* over and over, and read nothing, until the peer takes no more; *most* bytes are too many."""
    sent = 0
    while select.select([], [connection], [], 0.3)[1]:
        with suppress(BlockingIOError):
            sent += connection.send(memoryview(batch)[sent % len(batch) :], socket.MSG_DONTWAIT)
        assert sent < most, "the server goes on reading requests whose answers nobody takes"


def messages_in(data: bytes) -> list[list[Any]]:
    """Return the messages that the server sent; a cut off one at the end is left out."""
    return [decode_payload(payload) for payload in FrameDecoder().feed(data)]


def framed(payload: bytes) -> bytes:
    """Put the length in front."""
    return struct.pack("<I", len(payload)) + payload


def hello_frame(request_id: int = 1) -> bytes:
    """Return the request that opens a session."""
    return encode_request(request_id, Hello(protocol=1, client="a stranger"))


# The tcp data port -------------------------------------------------------------------------------------------------


class DataStranger:
    """A session whose owner speaks to the data port by hand."""

    def __init__(self, pool: Pool, slab: Slab) -> None:
        self.pool = pool
        self.slab = slab
        params = slab.attachment.ticket.params
        self.address: tuple[str, int] = (params["host"], params["port"])
        self.handle: int = params["handle"]
        self.generation = slab.generation
        self.secret: bytes = params["secret"]
        self.slot: int = params["slot"]
        self.hello = pack_hello(self.slot, self.secret)

    def connect(self) -> socket.socket:
        """Return a connection that has not said hello."""
        return connect_to(self.address)

    def talk(self, *pieces: bytes) -> list[tuple[str, bytes]]:
        """Say hello and send *pieces*; return the status and the bytes of each answer to them."""
        with self.connect() as connection:
            answers = answers_in(exchange(connection, self.hello, *pieces))
        assert answers[:1] in ([("ok", b"")], [])  # an end for garbage may overtake even the answer to the hello
        return answers[1:]

    def request(self, operation: str, offset: int = 0, length: int = 0, operand: int = 0) -> bytes:
        """Return one request on the stranger's own slab."""
        return pack_request(
            DATA_OPERATIONS[operation],
            handle=self.handle,
            generation=self.generation,
            offset=offset,
            length=length,
            operand=operand,
        )


def answers_in(data: bytes) -> list[tuple[str, bytes]]:
    """Return status and bytes of each whole answer; a word's old value stands for its bytes."""
    answers: list[tuple[str, bytes]] = []
    place = 0
    while len(data) - place >= ANSWER_BYTES:
        header = unpack_answer(data[place : place + ANSWER_BYTES])
        assert header["magic"] == MAGIC
        place += ANSWER_BYTES
        status, payload = STATUSES[header["status"]], data[place : place + header["length"]]
        if len(payload) < header["length"]:
            break
        if status == "ok" and DATA_NAMES[header["operation"]] in ("load", "fetch_add", "compare_swap"):
            payload = header["detail"].to_bytes(8, "little")
        answers.append((status, payload))
        place += header["length"]
    return answers


# The server --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """Run a server with its neighbours, and hold it to its memory, descriptors, slabs and sockets at the end."""
    with ExitStack() as stack:
        server = stack.enter_context(farpool.serve_embedded(disconnect_grace=0.2))
        with farpool.connect(server.url, transport="tcp") as pool:
            pool.free_many(pool.allocate_many([1] * 1000))  # no stranger guesses a neighbour's ids after that
        neighbours = [Neighbour(server.url, "cxl"), Neighbour(server.tcp_url, "tcp")]
        for neighbour in neighbours:
            stack.callback(neighbour.pool.close)
        target = Target(server, neighbours)
        target.check()
        before = traces_of(server)
        memory = target.memory()
        yield target
        target.check()
        assert not settle(lambda: traces_of(server), before, WITHIN), (
            "the server has not given back what strangers used"
        )
        strangers = settle(lambda: set(range(neighbours[0].pool.stat().sessions)), set(range(len(neighbours))))
        assert not strangers, "strangers' sessions have not ended"
        assert target.memory() - memory < GROWTH, "the server's memory grew"
        assert not [entry for entry in target.log() if entry["level"] in ("error", "critical")]


@pytest.fixture(scope="module")
def owner(target: Target) -> Iterator[DataStranger]:
    """A stranger with a slab that it may write."""
    with farpool.connect(target.server.url, transport="tcp") as pool:
        yield DataStranger(pool, pool.allocate(NBYTES, name="strange"))


@pytest.fixture(scope="module")
def reader(target: Target, owner: DataStranger) -> Iterator[DataStranger]:
    """Another one, which may only read it."""
    with farpool.connect(target.server.url, transport="tcp") as pool:
        yield DataStranger(pool, pool.open("strange", mode="r"))
