"""A server that stops answering is an error by the deadline of each call, and no harm once it goes on."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

SHORT = 0.1
AMPLE = 20.0


@contextmanager
def stopped(server: EmbeddedServer) -> Generator[None]:
    server.suspend()
    try:
        yield
    finally:
        server.resume()


def reads(slab: AnySlab, target: bytearray, timeout: float | None) -> list[Callable[[], object]]:
    return [
        lambda: slab.read(4, 0, timeout),
        lambda: slab.read_into(target, 0, timeout),
        lambda: slab.readv([(0, target), (8, bytearray(8))], timeout),
        lambda: slab.gather(array("q", [0, 8]), len(target) // 2, target, timeout),
        lambda: slab.load(16, timeout),
    ]


def changes(slab: AnySlab, timeout: float | None) -> list[Callable[[], object]]:
    return [
        lambda: slab.write(b"late", 100, timeout),
        lambda: slab.writev([(104, b"late"), (108, b"late")], timeout),
        lambda: slab.scatter(array("q", [112, 116]), 4, b"latelate", timeout),
        lambda: slab.store(24, 1, timeout),
        lambda: slab.fetch_add(32, 1, timeout),
        lambda: slab.compare_swap(40, 0, 1, timeout),
    ]


def check_overdue(calls: list[Callable[[], object]], *, alone: bool = False) -> None:
    """See that each call ends with ``DeadlineExceeded``; one that goes *alone*, without the server, is done."""
    for call in calls:
        if alone:
            call()
            continue
        with pytest.raises(farpool.DeadlineExceeded) as caught:
            call()
        assert isinstance(caught.value, TimeoutError)


def test_every_data_operation(server: EmbeddedServer, pool: AnyPool, slab: AnySlab, alone: bool) -> None:
    slab.write(b"data")
    target = bytearray(b"\xee" * 4)
    timeout = AMPLE if alone else SHORT
    with stopped(server):
        check_overdue(reads(slab, target, timeout), alone=alone)
        assert alone or target == b"\xee" * 4
        check_overdue(changes(slab, timeout), alone=alone)
    assert slab.read(4) == b"data"
    assert slab.read_into(target) == 4
    assert target == b"data"
    assert slab.fetch_add(48, 5) == 0
    assert slab.load(48) == 5
    assert slab.load(32) in {0, 1}
    assert slab.read(4, 100) in {bytes(4), b"late"}
    assert pool.stat().sessions >= 1


def test_every_control_operation(server: EmbeddedServer, pool: AnyPool, slab: AnySlab) -> None:
    with stopped(server):
        calls: list[Callable[[], object]] = [
            lambda: pool.allocate(64, timeout=SHORT),
            lambda: pool.open(slab.id, timeout=SHORT),
            lambda: pool.stat(timeout=SHORT),
            lambda: pool.slabs(timeout=SHORT),
        ]
        check_overdue(calls)
    pool.stat()  # behind the late replies, which undo what nobody waits for
    assert [(info.id, info.attached) for info in pool.slabs()] == [(slab.id, 1)]
    assert slab.read(4) == bytes(4)


def test_default_of_the_pool(connect: Connect, server: EmbeddedServer, alone: bool) -> None:
    pool = connect(server.url, timeout=0.2)
    slab = pool.allocate(4096, timeout=30)
    slab.write(b"data", timeout=30)
    with stopped(server):
        timeout = AMPLE if alone else None
        check_overdue([*reads(slab, bytearray(4), timeout)[:2], *changes(slab, timeout)[:2]], alone=alone)
        check_overdue([pool.stat])
    assert slab.read(4, timeout=30) == b"data"


def test_answer_that_comes_in_time(slab: AnySlab) -> None:
    slab.write(b"data", timeout=20)
    assert slab.read(4, timeout=20) == b"data"
    assert slab.read(4, 0, 20) == b"data"
    assert slab.load(8, timeout=1e9) == 0
    assert slab.readv([(0, bytearray(4))], timeout=float("inf")) == 4


def test_large_transfers(server: EmbeddedServer, pool: AnyPool, alone: bool) -> None:
    """A write that no socket buffer takes at once; and a read of which nothing comes."""
    slab = pool.allocate("32MiB")
    data = b"\x5a" * slab.nbytes
    slab.load(0)  # now the way is open
    timeout = AMPLE if alone else SHORT
    with stopped(server):
        check_overdue(
            [lambda: slab.write(data, timeout=timeout), lambda: slab.read(slab.nbytes, timeout=timeout)], alone=alone
        )
    slab.write(b"\x33" * 8, slab.nbytes - 8)
    slab.write(data[:4096])
    assert slab.read(4096) == data[:4096]
    assert slab.read(8, slab.nbytes - 8) == b"\x33" * 8


def test_server_that_stops_again_and_again(server: EmbeddedServer, slab: AnySlab, alone: bool) -> None:
    timeout = AMPLE if alone else 0.05
    slab.load(0)  # now the way is open
    for number in range(4):
        with stopped(server):
            check_overdue([lambda: slab.read(8, timeout=timeout)], alone=alone)
        slab.store(8, number)
        assert slab.load(8) == number
        assert slab.read(8) == bytes(8)
