"""A word can be waited for: it is told of our stores at once, and of all others soon."""

from __future__ import annotations

import threading
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

WITHIN = 30.0
"""Seconds that a wait may take at most; none of these does."""

CHANGES: dict[str, Callable[[farpool.Slab], object]] = {
    "store": lambda slab: slab.store(8, 1),
    "fetch_add": lambda slab: slab.fetch_add(8, 1),
    "compare_swap": lambda slab: slab.compare_swap(8, 0, 1),
    "write": lambda slab: slab.write(b"\1" + bytes(15), 8),
    "large write": lambda slab: slab.write(b"\1" * 4096),
    "writev": lambda slab: slab.writev([(64, b"beside"), (8, b"\1")]),
    "scatter": lambda slab: slab.scatter(array("q", [64, 8]), 8, bytes(8) + b"\1" * 8),
    "high half": lambda slab: slab.store(8, 1 << 40),
}


@contextmanager
def meanwhile(act: Callable[[], object]) -> Generator[None]:
    """Do *act* in a thread while the block runs."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_ends_the_wait(
    server: EmbeddedServer, transport: str, slab: AnySlab, change: Callable[[farpool.Slab], object]
) -> None:
    with farpool.connect(server.url, transport=transport) as pool, pool.open(slab.id) as theirs:
        with meanwhile(lambda: change(theirs)):
            assert slab.wait(8, 0, WITHIN) != 0
        assert slab.load(8) != 0


def test_a_word_that_differs_already_is_returned_at_once(slab: AnySlab) -> None:
    slab.store(16, 7)
    assert slab.wait(16, 0, WITHIN) == 7
    assert slab.wait(16, (1 << 64) - 1, WITHIN) == 7


def test_in_vain_it_ends_at_the_deadline(slab: AnySlab) -> None:
    slab.store(16, 7)
    # A busy machine's server may answer too late to say that nothing has changed.
    with pytest.raises(farpool.DeadlineExceeded, match=r"offset 16|not answered wait in time"):
        slab.wait(16, 7, 1.0)


def test_two_sides_take_turns(server: EmbeddedServer, transport: str, slab: AnySlab) -> None:
    rounds = 200
    with farpool.connect(server.url, transport=transport) as pool, pool.open(slab.id) as theirs:

        def answer() -> None:
            for number in range(rounds):
                assert theirs.wait(0, number, WITHIN) == number + 1
                theirs.store(8, number + 1)

        with meanwhile(answer):
            for number in range(rounds):
                slab.store(0, number + 1)
                assert slab.wait(8, number, WITHIN) == number + 1


def test_a_store_through_a_view_is_seen(
    server: EmbeddedServer, transport: str, slab: AnySlab, needs_views: None
) -> None:
    with farpool.connect(server.url, transport=transport) as pool, pool.open(slab.id) as theirs:

        def store() -> None:
            array = theirs.array("u8", 4)
            array[2] = 5
            theirs.flush()

        with meanwhile(store):
            assert slab.wait(16, 0, WITHIN) == 5
        theirs.notify(16)


def test_the_end_of_the_slab_ends_the_wait(pool: AnyPool, connect: Connect, server: EmbeddedServer) -> None:
    slab = pool.allocate(64)
    other = connect(server.url).open(slab.id)
    with meanwhile(slab.free), pytest.raises(farpool.StaleSlab):
        other.wait(0, 0, WITHIN)


def test_a_reader_may_wait_and_notify(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(64, name="waited-for")
    reader = other.open("waited-for", mode="r")
    slab.store(0, 3)
    assert reader.wait(0, 0, WITHIN) == 3
    reader.notify(0)
    slab.free()


@pytest.mark.parametrize("offset", [-8, 4096, 4089])
def test_there_is_no_such_word(slab: AnySlab, offset: int) -> None:
    with pytest.raises((farpool.OutOfBounds, farpool.InvalidArgument)):
        slab.wait(offset, 0, WITHIN)
    with pytest.raises((farpool.OutOfBounds, farpool.InvalidArgument)):
        slab.notify(offset)


@pytest.mark.parametrize("expected", [-1, 1 << 64])
def test_no_word_is_such_a_number(slab: AnySlab, expected: int) -> None:
    with pytest.raises(farpool.InvalidArgument):
        slab.wait(0, expected, WITHIN)


def test_a_restart_is_no_end(own_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=WITHIN) as pool:
        slab = pool.allocate(64, lease="persistent")

        def restart_and_store() -> None:
            own_server.kill()
            own_server.start()
            with farpool.connect(own_server.url, transport=transport, timeout=WITHIN) as again:
                again.open(slab.id).store(0, 9)

        with meanwhile(restart_and_store):
            assert slab.wait(0, 0, WITHIN) == 9
