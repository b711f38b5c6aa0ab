"""The tcp data port before strangers who say hello wrongly, send garbage, or ask and never read."""

from __future__ import annotations

import select
import struct
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import NBYTES, WITHIN, DataStranger, Target, answers_in, bounded, exchange, name_of, pour

import farpool
from farpool.native.tcp_wire import MAX_PARTS, REQUEST_BYTES, VERSION, pack_hello

FIRST = bytes(range(256)) * (NBYTES // 256)


# Hello ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["magic", "version", "secret", "slot", "far slot", "operation", "twice"])
def test_a_wrong_hello_is_refused_and_logged_once(target: Target, owner: DataStranger, case: str) -> None:
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
    events = {"version": "data plane: refused"} | dict.fromkeys(("operation", "twice"), "data plane: out of turn")
    events |= dict.fromkeys(("secret", "slot", "far slot"), "audit")
    assert target.logged_once(since, peer)["event"] == events.get(case, "data plane: garbage")
    target.check()


@bounded(60)
@given(data=st.binary(min_size=1, max_size=400))
def test_garbage_ends_that_connection_alone(target: Target, owner: DataStranger, data: bytes) -> None:
    with owner.connect() as connection:
        assert not exchange(connection, data)
    with owner.connect() as connection:
        exchange(connection, owner.hello + data)
    target.check()


def test_an_http_request_on_the_port_is_garbage(target: Target, owner: DataStranger) -> None:
    since = len(target.server.log())
    with owner.connect() as connection:
        peer = name_of(connection)
        assert not exchange(connection, b"GET / HTTP/1.1\r\nHost: pool\r\nAccept: application/json, text/html\r\n\r\n")
    assert target.logged_once(since, peer)["event"] == "data plane: garbage"


@pytest.mark.parametrize("length", [0, 1, REQUEST_BYTES - 1])
def test_half_a_hello_is_no_hello(target: Target, owner: DataStranger, length: int) -> None:
    with owner.connect() as connection:
        assert not exchange(connection, owner.hello[:length])
    target.check()


def test_one_byte_at_a_time_is_a_request_like_any_other(owner: DataStranger) -> None:
    owner.slab.write(FIRST)
    stream = owner.hello + owner.request("write", 8, 16) + b"w" * 16 + owner.request("read", 0, 32)
    with owner.connect() as connection:
        data = exchange(connection, *[stream[place : place + 1] for place in range(len(stream))])
    assert answers_in(data) == [("ok", b""), ("ok", b""), ("ok", FIRST[:8] + b"w" * 16 + FIRST[24:32])]


# Who is slow, or greedy -----------------------------------------------------------------------------------------


def test_batches_of_empty_parts_leave_nothing_behind(target: Target, owner: DataStranger) -> None:
    batch = owner.request("readv", operand=MAX_PARTS) + bytes(16 * MAX_PARTS)
    owner.talk(*[batch] * 100)
    before = target.memory()
    assert owner.talk(*[batch] * 1000) == [("ok", b"")] * 1000
    assert target.memory() - before < 16 << 20
    target.check()


def test_who_never_reads_costs_a_bounded_amount(target: Target, owner: DataStranger) -> None:
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


def test_a_flood_of_strangers_shuts_nobody_out(target: Target, owner: DataStranger) -> None:
    """The oldest give way, before their time for a hello is over, and new clients come in."""
    since = len(target.server.log())
    with ExitStack() as stack:
        strangers = [stack.enter_context(owner.connect()) for _ in range(600)]
        assert select.select(strangers[:1], [], [], WITHIN)[0], "the oldest stranger is still there"
        assert strangers[0].recv(1) == b""
        assert target.logged_once(since, name_of(strangers[0]))["event"] == "data plane: crowd"
        assert owner.talk(owner.request("read", length=8))[0][0] == "ok"
        with farpool.connect(target.server.url, transport="tcp") as pool:
            assert pool.allocate(8).read(8) == bytes(8)
        target.check()
    target.check()


def test_a_slow_hello_is_cut_off_however_steadily_it_comes(owner: DataStranger) -> None:
    """A byte now and then is no hello in time."""
    with owner.connect() as connection:
        connection.settimeout(0.4)
        for byte in owner.hello:
            try:
                connection.send(bytes([byte]))
                if connection.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("the server waits for ever")


def test_a_slab_is_freed_although_its_reader_never_reads(target: Target) -> None:
    with farpool.connect(target.server.url, transport="tcp") as pool:
        stranger = DataStranger(pool, pool.allocate("8MiB"))
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
    stranger = DataStranger(pool, pool.allocate("1MiB"))
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


def test_a_payload_that_never_ends_is_its_senders_own_trouble(target: Target, owner: DataStranger) -> None:
    with owner.connect() as connection:
        connection.sendall(owner.hello + owner.request("write", 0, NBYTES) + b"half")
        assert owner.slab.read(NBYTES, timeout=5.0)
        owner.slab.write(FIRST, timeout=5.0)
        target.check()
    target.check()
