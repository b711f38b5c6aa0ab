"""Aligned 8-byte words: unsigned, little-endian, and atomic between all that reach them over one transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from tests.conformance.driving import AnyPool, AnySlab

import farpool
from farpool.server.embedded import EmbeddedServer

if TYPE_CHECKING:
    from tests.conformance.conftest import StartChild

TOP = (1 << 64) - 1


def test_words_are_little_endian_bytes(slab: AnySlab) -> None:
    slab.store(8, 0x0102030405060708)
    assert slab.read(24) == bytes(8) + bytes([8, 7, 6, 5, 4, 3, 2, 1]) + bytes(8)
    slab.write((12345678901234567890).to_bytes(8, "little"), 16)
    assert slab.load(16) == 12345678901234567890


@pytest.mark.parametrize("value", [0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, TOP])
def test_every_bit_is_kept(slab: AnySlab, value: int) -> None:
    last = slab.nbytes - 8
    slab.store(last, value)
    assert slab.load(last) == value
    assert slab.fetch_add(last, 0) == value
    assert slab.compare_swap(last, value, TOP - value) == value
    assert slab.load(last) == TOP - value


def test_fetch_add_wraps(slab: AnySlab) -> None:
    assert slab.fetch_add(0, 5) == 0
    assert slab.fetch_add(0, -7) == 5
    assert slab.fetch_add(0, 1) == TOP - 1
    assert slab.fetch_add(0, 1) == TOP
    assert slab.load(0) == 0
    slab.store(0, 10)
    assert slab.fetch_add(0, (1 << 64) + 3) == 10
    assert slab.fetch_add(0, -(1 << 64) - 3) == 13
    assert slab.load(0) == 10


def test_compare_swap_says_what_was_there(slab: AnySlab) -> None:
    assert slab.compare_swap(0, expected=0, new=7) == 0
    assert slab.compare_swap(0, expected=0, new=9) == 7
    assert slab.load(0) == 7
    assert slab.compare_swap(0, 7, 7) == 7
    assert slab.compare_swap(0, 7, 0) == 7
    assert slab.load(0) == 0


def test_neighbours_stay(slab: AnySlab) -> None:
    slab.write(b"\xff" * 24)
    assert slab.fetch_add(8, 1) == TOP
    assert slab.read(24) == b"\xff" * 8 + bytes(8) + b"\xff" * 8


@pytest.mark.parametrize("offset", [1, 4, 7, 4089, 12])
def test_words_are_aligned(slab: AnySlab, offset: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: slab.load(offset),
        lambda: slab.store(offset, 1),
        lambda: slab.fetch_add(offset, 1),
        lambda: slab.compare_swap(offset, 0, 1),
    ]
    for call in calls:
        with pytest.raises((farpool.InvalidArgument, farpool.OutOfBounds)):
            call()
    assert slab.read(4096) == bytes(4096)


@pytest.mark.parametrize("value", [-1, 1 << 64, 1 << 200])
def test_words_have_64_bits(slab: AnySlab, value: int) -> None:
    calls: list[Callable[[], object]] = [
        lambda: slab.store(0, value),
        lambda: slab.compare_swap(0, value, 1),
        lambda: slab.compare_swap(0, 0, value),
    ]
    for call in calls:
        with pytest.raises(farpool.InvalidArgument):
            call()
    assert slab.load(0) == 0


def test_no_word_fits_into_the_last_bytes(pool: AnyPool) -> None:
    slab = pool.allocate(20)
    slab.store(8, 3)
    with pytest.raises(farpool.OutOfBounds):
        slab.load(16)
    with pytest.raises(farpool.OutOfBounds):
        pool.allocate(7).fetch_add(0, 1)


def test_processes_lose_no_update(server: EmbeddedServer, pool: AnyPool, start_child: StartChild) -> None:
    """Four processes add to one word and swap another: each change counts exactly once."""
    rounds, processes = 150, 4
    slab = pool.allocate(64, name="counters", lease="persistent")
    children = [start_child("count", server.url, pool.transport, "counters", rounds) for _ in range(processes)]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out) == (0, "done\n"), err
    assert slab.load(8) == rounds * processes
    assert slab.load(16) == rounds * processes
    assert slab.load(24) == (-rounds * processes) % (1 << 64)
    slab.free()
