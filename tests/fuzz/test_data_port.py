"""The tcp data port under requests that no client of ours sends, compared with a model in plain Python."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

import farpool
from farpool.client.pool import Pool
from farpool.client.slab import Slab
from farpool.native.tcp_wire import (
    ANSWER_BYTES,
    MAGIC,
    MAX_PARTS,
    OPERATIONS,
    REQUEST_BYTES,
    STATUSES,
    VERSION,
    pack_hello,
    pack_request,
    unpack_answer,
)
from tests.fuzz.conftest import Target, bounded, connect_to, exchange, name_of, pour

NBYTES = 8192
FIRST = bytes(range(256)) * (NBYTES // 256)
NAMES = {number: name for name, number in OPERATIONS.items()}
CHANGING = {"write", "writev", "store", "fetch_add", "compare_swap"}

Part = tuple[int, int]


# Strangers with a session ---------------------------------------------------------------------------------------


class Stranger:
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
            OPERATIONS[operation],
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
        if status == "ok" and NAMES[header["operation"]] in ("load", "fetch_add", "compare_swap"):
            payload = header["detail"].to_bytes(8, "little")
        answers.append((status, payload))
        place += header["length"]
    return answers


@pytest.fixture(scope="module")
def owner(target: Target) -> Iterator[Stranger]:
    """A stranger with a slab that it may write."""
    with farpool.connect(target.server.url, transport="tcp") as pool:
        yield Stranger(pool, pool.allocate(NBYTES, name="strange"))


@pytest.fixture(scope="module")
def reader(target: Target, owner: Stranger) -> Iterator[Stranger]:
    """Another one, which may only read it."""
    with farpool.connect(target.server.url, transport="tcp") as pool:
        yield Stranger(pool, pool.open("strange", mode="r"))


# Requests, and what they should do ------------------------------------------------------------------------------


@dataclass
class Ask:
    """One request, with all that stands behind its header."""

    operation: int
    handle: str
    generation: str
    offset: int
    length: int
    operand: int
    parts: list[Part] = field(default_factory=list[Part])
    payload: bytes = b""
    magic: int = MAGIC

    @property
    def name(self) -> str:
        return NAMES.get(self.operation, "unknown")

    def encode(self, stranger: Stranger, foreign: int) -> bytes:
        """Return header, parts and payload."""
        handles = {"own": stranger.handle, "a neighbour's": foreign, "none": 2**32 - 1, "next": stranger.handle + 1}
        generations = {"own": stranger.generation, "none": 0, "old": stranger.generation - 1, "last": 2**64 - 1}
        header = pack_request(
            self.operation,
            handle=handles[self.handle],
            generation=generations[self.generation],
            offset=self.offset,
            length=self.length,
            operand=self.operand,
            magic=self.magic,
        )
        return header + b"".join(struct.pack("<QQ", *part) for part in self.parts) + self.payload


def inside(offset: int, length: int) -> bool:
    """Tell whether the range is one of the slab's."""
    return offset + length <= NBYTES


class Model:
    """The slab's bytes, and the answers of a server that keeps every rule."""

    def __init__(self, *, writable: bool) -> None:
        self.content = bytearray(FIRST)
        self.answers: list[tuple[str, bytes]] = []
        self.dropped = False
        """Garbage came, which ends the connection at once: answers that were not out yet are lost."""
        self._writable = writable

    def take(self, ask: Ask) -> bool:
        """Do one request; return False if nothing behind it is understood any more."""
        too_many = ask.name in ("readv", "writev") and ask.operand > MAX_PARTS
        if ask.magic != MAGIC or ask.name in ("unknown", "hello") or too_many:
            self.dropped = True
            return False
        status = self.judge(ask)
        whole = ask.name not in ("write", "writev") or len(ask.payload) == ask.length
        if whole:
            self.answers.append((status, self.do(ask) if status == "ok" else b""))
        elif status == "ok":
            self.move(ask)
        return whole

    def judge(self, ask: Ask) -> str:
        """Return the status that the request deserves."""
        if (ask.handle, ask.generation) != ("own", "own"):
            return "stale"
        if ask.name in CHANGING and not self._writable:
            return "read only"
        if ask.name in ("readv", "writev"):
            if not all(inside(*part) for part in ask.parts):
                return "out of bounds"
            return "ok" if sum(length for _, length in ask.parts) == ask.length else "invalid"
        if ask.name in ("read", "write"):
            return "ok" if inside(ask.offset, ask.length) else "out of bounds"
        if not inside(ask.offset, 8):
            return "out of bounds"
        return "invalid" if ask.offset % 8 else "ok"

    def do(self, ask: Ask) -> bytes:
        """Change the bytes, and return those of the answer."""
        if ask.name in ("write", "writev"):
            self.move(ask)
            return b""
        if ask.name in ("read", "readv"):
            parts = ask.parts if ask.name == "readv" else [(ask.offset, ask.length)]
            return b"".join(self.content[offset : offset + length] for offset, length in parts)
        old = int.from_bytes(self.content[ask.offset : ask.offset + 8], "little")
        new = {
            "load": old,
            "store": ask.operand,
            "fetch_add": (old + ask.operand) % 2**64,
            "compare_swap": ask.operand if old == ask.length else old,
        }[ask.name]
        self.content[ask.offset : ask.offset + 8] = new.to_bytes(8, "little")
        return b"" if ask.name == "store" else old.to_bytes(8, "little")

    def move(self, ask: Ask) -> None:
        """Take the payload, or as much of it as came."""
        left = ask.payload
        for offset, length in ask.parts if ask.name == "writev" else [(ask.offset, ask.length)]:
            here, left = left[:length], left[length:]
            self.content[offset : offset + len(here)] = here


EDGES = [0, 1, 7, 8, 63, 64, 4095, 4096, NBYTES - 8, NBYTES - 1, NBYTES, NBYTES + 1]
FAR = [2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 8, 2**63 - 1, 2**63, 2**64 - NBYTES, 2**64 - 8, 2**64 - 1]
NUMBERS = st.one_of(st.sampled_from(EDGES), st.sampled_from(EDGES), st.sampled_from(FAR), st.integers(0, 2**64 - 1))
MOSTLY_OWN = ["own"] * 12


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Draw a request that is wrong in few places, if any."""
    operation = draw(st.sampled_from([*OPERATIONS.values(), *list(OPERATIONS.values())[1:] * 3, 0, 10, 128, 255]))
    ask = Ask(
        operation=operation,
        handle=draw(st.sampled_from([*MOSTLY_OWN, "a neighbour's", "none", "next"])),
        generation=draw(st.sampled_from([*MOSTLY_OWN, "none", "old", "last"])),
        offset=draw(NUMBERS),
        length=draw(NUMBERS),
        operand=draw(NUMBERS),
        magic=draw(st.sampled_from([MAGIC] * 30 + [0, MAGIC ^ 1, 0x5448])),
    )
    if ask.name in ("readv", "writev"):
        numbers = draw(st.sampled_from([st.sampled_from(EDGES), st.sampled_from(EDGES[:8]), NUMBERS]))
        ask.parts = draw(st.lists(st.tuples(numbers, numbers), max_size=8))
        ask.operand = draw(st.sampled_from([len(ask.parts)] * 10 + [MAX_PARTS + 1, 2**60 + len(ask.parts), 2**64 - 1]))
        total = sum(length for _, length in ask.parts) % 2**64
        ask.length = draw(st.sampled_from([total] * 6 + [0, total + 1 if total < 2**64 - 1 else 0, 2**64 - 1]))
    if ask.name in ("write", "writev"):
        limit = min(ask.length, 3 * NBYTES)
        cut = draw(st.sampled_from([limit] * 8 + [0, limit // 2, max(0, limit - 1)]))
        ask.payload = bytes([draw(st.integers(0, 255))]) * cut
    return ask


@bounded(300)
@given(stream=st.lists(asks(), max_size=12), cuts=st.lists(st.integers(0, 4000), max_size=4), reads_only=st.booleans())
def test_every_answer_is_that_of_the_model(
    target: Target, owner: Stranger, reader: Stranger, stream: list[Ask], cuts: list[int], reads_only: bool
) -> None:
    stranger = reader if reads_only else owner
    foreign: int = target.neighbours[1].slab.attachment.ticket.params["handle"]
    owner.slab.write(FIRST)
    model = Model(writable=not reads_only)
    sent = b""
    for ask in stream:
        sent += ask.encode(stranger, foreign)
        if not model.take(ask):
            break
    edges = [0, *sorted(cut for cut in cuts if cut < len(sent)), len(sent)]
    answers = stranger.talk(*[sent[start:end] for start, end in zip(edges, edges[1:], strict=False)])
    assert answers == model.answers[: len(answers)]
    assert len(answers) == len(model.answers) or model.dropped, "answers are missing"
    assert owner.slab.read(NBYTES) == model.content
    target.check()


# Hello ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["magic", "version", "secret", "slot", "far slot", "operation", "twice"])
def test_a_wrong_hello_is_refused_and_logged_once(target: Target, owner: Stranger, case: str) -> None:
    wrong = {
        "magic": b"\0" + owner.hello[1:],
        "version": pack_hello(owner.slot, owner.secret, version=VERSION + 1),
        "secret": pack_hello(owner.slot, bytes(32)),
        "slot": pack_hello(owner.slot + 1, owner.secret),
        "far slot": pack_hello(2**32 - 1, owner.secret),
        "operation": owner.request("read", length=8),
        "twice": owner.hello * 2,
    }[case]
    statuses = {"version": ["version"], "secret": ["refused"], "slot": ["refused"], "far slot": ["refused"]}
    since = len(target.server.log())
    with owner.connect() as connection:
        peer = name_of(connection)
        answers = answers_in(exchange(connection, wrong, owner.request("read", length=8)))
    assert [status for status, _ in answers] in (statuses.get(case, []), [])
    event = "data plane: refused" if case in ("version", "secret", "slot", "far slot") else "data plane: garbage"
    assert target.logged_once(since, peer)["event"] == event
    target.check()


@bounded(60)
@given(data=st.binary(min_size=1, max_size=400))
def test_garbage_ends_that_connection_alone(target: Target, owner: Stranger, data: bytes) -> None:
    with owner.connect() as connection:
        assert not exchange(connection, data)
    with owner.connect() as connection:
        exchange(connection, owner.hello + data)
    target.check()


def test_an_http_request_on_the_port_is_garbage(target: Target, owner: Stranger) -> None:
    since = len(target.server.log())
    with owner.connect() as connection:
        peer = name_of(connection)
        assert not exchange(connection, b"GET / HTTP/1.1\r\nHost: pool\r\nAccept: application/json, text/html\r\n\r\n")
    assert target.logged_once(since, peer)["event"] == "data plane: garbage"


@pytest.mark.parametrize("length", [0, 1, REQUEST_BYTES - 1])
def test_half_a_hello_is_no_hello(target: Target, owner: Stranger, length: int) -> None:
    with owner.connect() as connection:
        assert not exchange(connection, owner.hello[:length])
    target.check()


def test_one_byte_at_a_time_is_a_request_like_any_other(owner: Stranger) -> None:
    owner.slab.write(FIRST)
    stream = owner.hello + owner.request("write", 8, 16) + b"w" * 16 + owner.request("read", 0, 32)
    with owner.connect() as connection:
        data = exchange(connection, *[stream[place : place + 1] for place in range(len(stream))])
    assert answers_in(data) == [("ok", b""), ("ok", b""), ("ok", FIRST[:8] + b"w" * 16 + FIRST[24:32])]


# Who is slow, or greedy -----------------------------------------------------------------------------------------


def test_batches_of_empty_parts_leave_nothing_behind(target: Target, owner: Stranger) -> None:
    batch = owner.request("readv", operand=MAX_PARTS) + bytes(16 * MAX_PARTS)
    owner.talk(*[batch] * 100)
    before = target.memory()
    assert owner.talk(*[batch] * 1000) == [("ok", b"")] * 1000
    assert target.memory() - before < 16 << 20
    target.check()


def test_who_never_reads_costs_a_bounded_amount(target: Target, owner: Stranger) -> None:
    vector = struct.pack("<QQ", 0, NBYTES) * MAX_PARTS
    batch = (
        owner.request("read", length=NBYTES) * 100
        + (owner.request("readv", length=NBYTES * MAX_PARTS, operand=MAX_PARTS) + vector) * 100
        + owner.request("write", length=8)
        + bytes(8)
    )
    before = target.memory()
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(owner.connect())
            connection.sendall(owner.hello)
            pour(connection, batch, most=64 << 20)
            target.check()
        assert target.memory() - before < 32 << 20
        owner.slab.write(FIRST, timeout=5.0)
        assert owner.slab.read(NBYTES, timeout=5.0) == FIRST
    target.check()


def test_a_slab_is_freed_although_its_reader_never_reads(target: Target) -> None:
    with farpool.connect(target.server.url, transport="tcp") as pool:
        stranger = Stranger(pool, pool.allocate("8MiB"))
        with stranger.connect() as connection:
            connection.sendall(stranger.hello + stranger.request("read", length=8 << 20) * 50)
            assert select.select([connection], [], [], 10.0)[0]
            stranger.slab.free(timeout=5.0)
            received = exchange(connection)
        assert len(received) < 50 * (8 << 20)
        assert all(status == "stale" for status, payload in answers_in(received)[1:] if not payload)
    target.check()


def test_the_end_of_a_session_closes_its_stalled_connections(target: Target) -> None:
    pool = farpool.connect(target.server.url, transport="tcp")
    stranger = Stranger(pool, pool.allocate("1MiB"))
    with stranger.connect() as connection, stranger.connect() as another:
        connection.sendall(stranger.hello + stranger.request("read", length=1 << 20) * 60)
        another.sendall(stranger.hello + stranger.request("write", length=2**64 - 1) + bytes(4096))
        assert select.select([connection], [], [], 10.0)[0]
        pool.close()
        exchange(connection)
        exchange(another)
    with stranger.connect() as late:
        assert answers_in(exchange(late, stranger.hello)) == [("refused", b"")]
    target.check()


def test_a_payload_that_never_ends_is_its_senders_own_trouble(target: Target, owner: Stranger) -> None:
    with owner.connect() as connection:
        connection.sendall(owner.hello + owner.request("write", 0, NBYTES) + b"half")
        assert owner.slab.read(NBYTES, timeout=5.0)
        owner.slab.write(FIRST, timeout=5.0)
        target.check()
    target.check()
