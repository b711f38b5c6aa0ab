"""What can't be right raises, and not a byte moves: neither in the slab nor in the caller's buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.driving import AnyPool, AnySlab

SIZE = 1000
BEFORE = bytes(range(250)) * 4
TARGET = b"\xee" * 64

Call = Callable[["AnySlab", Any, Any], object]
"""Gets the slab, the bad value and a buffer of 64 bytes that must stay as it is."""

OFFSETS: list[tuple[str, Call]] = [
    ("read", lambda slab, offset, _: slab.read(8, offset)),
    ("read_into", lambda slab, offset, target: slab.read_into(target, offset)),
    ("write", lambda slab, offset, _: slab.write(b"12345678", offset)),
    ("readv", lambda slab, offset, target: slab.readv([(0, target), (offset, bytearray(8))])),
    ("readv-alone", lambda slab, offset, target: slab.readv([(offset, target)])),
    ("writev", lambda slab, offset, _: slab.writev([(0, b"abc"), (offset, b"12345678"), (16, b"d")])),
    ("load", lambda slab, offset, _: slab.load(offset)),
    ("store", lambda slab, offset, _: slab.store(offset, 1)),
    ("fetch_add", lambda slab, offset, _: slab.fetch_add(offset, 1)),
    ("compare_swap", lambda slab, offset, _: slab.compare_swap(offset, 0, 1)),
    ("flush", lambda slab, offset, _: slab.flush(offset, 8)),
    ("invalidate", lambda slab, offset, _: slab.invalidate(offset, 8)),
    ("view", lambda slab, offset, _: slab.view(offset, 8)),
]

LENGTHS: list[tuple[str, Call]] = [
    ("read", lambda slab, length, _: slab.read(length, 8)),
    ("flush", lambda slab, length, _: slab.flush(8, length)),
    ("invalidate", lambda slab, length, _: slab.invalidate(8, length)),
    ("view", lambda slab, length, _: slab.view(8, length)),
]

SOURCES: list[tuple[str, Call]] = [
    ("write", lambda slab, buffer, _: slab.write(buffer)),
    ("writev", lambda slab, buffer, _: slab.writev([(0, b"abc"), (8, buffer)])),
]

TARGETS: list[tuple[str, Call]] = [
    ("read_into", lambda slab, buffer, _: slab.read_into(buffer)),
    ("readv", lambda slab, buffer, target: slab.readv([(0, target), (8, buffer)])),
]


@pytest.fixture
def slab(pool: AnyPool) -> Iterator[AnySlab]:
    """A slab that must come out of its test as it went in."""
    slab = pool.allocate(SIZE)
    slab.write(BEFORE)
    yield slab
    assert slab.read(SIZE) == BEFORE


@pytest.fixture
def target() -> Iterator[bytearray]:
    """A buffer that must come out of its test as it went in."""
    buffer = bytearray(TARGET)
    yield buffer
    assert buffer == TARGET


def refuse(
    calls: list[tuple[str, Call]], value: Any, target: bytearray, slab: AnySlab, *errors: type[Exception]
) -> None:
    """Make each call with a bad value, and see that each raises one of *errors*."""
    for name, call in calls:
        try:
            call(slab, value, target)
        except errors:
            continue
        pytest.fail(f"{name} takes {value!r}")


@pytest.mark.parametrize("offset", [SIZE - 7, SIZE, SIZE + 1, 2**31, 2**63 - 8, 2**63, 2**64 - 8, 2**64, 2**200])
def test_past_the_end(slab: AnySlab, target: bytearray, offset: int) -> None:
    refuse(OFFSETS, offset, target, slab, farpool.OutOfBounds)


@pytest.mark.parametrize("offset", [-1, -8, -SIZE, -(2**63), -(2**200)])
def test_negative_offset(slab: AnySlab, target: bytearray, offset: int) -> None:
    refuse(OFFSETS, offset, target, slab, farpool.OutOfBounds, farpool.InvalidArgument)


@pytest.mark.parametrize("length", [SIZE - 7, 2**40, 2**63, 2**64, 2**200, -1, -(2**70)])
def test_length(slab: AnySlab, target: bytearray, length: int) -> None:
    refuse(LENGTHS, length, target, slab, farpool.OutOfBounds, farpool.InvalidArgument)


@pytest.mark.parametrize("offset", ["8", 8.0, None, b"8", 1j, object()], ids=lambda value: type(value).__name__)
def test_offset_that_is_no_integer(slab: AnySlab, target: bytearray, offset: object) -> None:
    refuse(OFFSETS, offset, target, slab, TypeError)


def test_message_says_what_was_asked_and_what_there_is(slab: AnySlab) -> None:
    with pytest.raises(farpool.OutOfBounds, match=rf"77.*{SIZE}") as caught:
        slab.read(77, SIZE - 5)
    assert isinstance(caught.value, IndexError)


def test_message_has_the_number_of_the_caller(slab: AnySlab) -> None:
    for offset in (2**64, -(2**64), 2**63):
        with pytest.raises(farpool.OutOfBounds, match=str(offset)):
            slab.read(8, offset)


def test_numbers_of_numpy_are_integers(slab: AnySlab) -> None:
    assert slab.read(cast(int, np.int64(8)), cast(int, np.uint8(8))) == BEFORE[8:16]
    with pytest.raises(farpool.OutOfBounds):
        slab.read(8, cast(int, np.int16(-8)))


@pytest.mark.parametrize("length", ["8", 8.5])
def test_length_that_is_no_integer(slab: AnySlab, length: Any) -> None:
    with pytest.raises(TypeError):
        slab.read(length)
    with pytest.raises(TypeError):
        slab.flush(0, length)


# Buffers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros((8, 8), np.uint8)[:, ::2],
        np.zeros(64, np.uint8)[::-1],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        memoryview(bytearray(64))[::2],
    ],
    ids=["strided", "reversed", "fortran", "memoryview"],
)
def test_not_contiguous(slab: AnySlab, target: bytearray, buffer: Any) -> None:
    before = bytes(buffer)
    refuse(SOURCES + TARGETS, buffer, target, slab, farpool.InvalidArgument)
    assert bytes(buffer) == before


def frozen_array() -> Any:
    frozen = np.full(16, 0xEE, np.uint8)
    frozen.flags.writeable = False
    return frozen


@pytest.mark.parametrize("make", [lambda: bytes(16), lambda: memoryview(bytearray(16)).toreadonly(), frozen_array])
def test_target_that_is_read_only(slab: AnySlab, target: bytearray, make: Callable[[], Any]) -> None:
    buffer = make()
    before = bytes(buffer)
    refuse(TARGETS, buffer, target, slab, TypeError)
    assert bytes(buffer) == before


@pytest.mark.parametrize("buffer", ["text", 8, None, 1.5, [1, 2], object()], ids=lambda value: type(value).__name__)
def test_no_buffer_at_all(slab: AnySlab, target: bytearray, buffer: Any) -> None:
    refuse(SOURCES + TARGETS, buffer, target, slab, TypeError)


def arrays_of_objects() -> list[Any]:
    whole = np.array([object(), object()])
    within = np.zeros(2, np.dtype([("Offset", "i8"), ("held", "O")]))
    dated = np.zeros(2, np.dtype([("held", "O"), ("when", "M8[s]")]))  # has no format that a buffer could show
    return [whole, whole.reshape(1, 2), memoryview(whole), within, dated]


@pytest.mark.parametrize("buffer", arrays_of_objects(), ids=["plain", "matrix", "view", "field", "dated"])
def test_objects_are_no_bytes(slab: AnySlab, target: bytearray, buffer: Any) -> None:
    """Read over, their addresses would crash the process; written, they would be told to others."""
    before = [*np.asarray(buffer).ravel()]
    refuse(SOURCES + TARGETS, buffer, target, slab, farpool.UnsuitableBuffer)
    assert [*np.asarray(buffer).ravel()] == before


@pytest.mark.parametrize("past", [SIZE + 1, 10 * SIZE, 5 << 20])
def test_buffer_longer_than_the_slab(slab: AnySlab, past: int) -> None:
    """Also one that is cut into steps or chunks on its way."""
    buffer = bytearray(b"\xee" * past)
    with pytest.raises(farpool.OutOfBounds):
        slab.write(bytes(past))
    with pytest.raises(farpool.OutOfBounds):
        slab.read_into(buffer)
    with pytest.raises(farpool.OutOfBounds):
        slab.readv([(0, memoryview(buffer)[:8]), (8, buffer)])
    with pytest.raises(farpool.OutOfBounds):
        slab.writev([(0, b"abc"), (8, bytes(past))])
    assert buffer.count(0xEE) == past


@pytest.mark.parametrize("parts", [5, None, [5], [(1,)], [(1, bytearray(1), 2)], [None], "ab", [b"ab", (0, 1)]])
def test_parts_that_are_none(slab: AnySlab, parts: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        slab.readv(parts)
    with pytest.raises((TypeError, ValueError)):
        slab.writev(parts)


def test_one_bad_part_of_many(pool: AnyPool) -> None:
    """The last of more parts than one request takes is past the end: none is moved."""
    slab = pool.allocate(6000)
    targets = [(place, bytearray(b"\xee")) for place in range(5999)]
    with pytest.raises(farpool.OutOfBounds):
        slab.writev([*[(place, b"x") for place in range(5999)], (5999, b"xy")])
    assert slab.read(6000) == bytes(6000)
    with pytest.raises(farpool.OutOfBounds):
        slab.readv([*targets, (6000, bytearray(1))])
    assert all(buffer == b"\xee" for _, buffer in targets)


def test_parts_whose_iterator_fails(slab: AnySlab, target: bytearray) -> None:
    def parts() -> Iterator[tuple[int, Any]]:
        yield 0, target
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        slab.readv(parts())
    with pytest.raises(ZeroDivisionError):
        slab.writev(parts())


@pytest.mark.parametrize("value", ["1", 1.0, None, b"1"], ids=lambda value: type(value).__name__)
def test_word_that_is_no_integer(slab: AnySlab, value: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: slab.store(0, value),
        lambda: slab.fetch_add(0, value),
        lambda: slab.compare_swap(0, value, 1),
        lambda: slab.compare_swap(0, 1, value),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


TIMEOUTS: list[tuple[str, Call]] = [
    ("read", lambda slab, timeout, _: slab.read(8, 0, timeout)),
    ("read_into", lambda slab, timeout, target: slab.read_into(target, 0, timeout)),
    ("write", lambda slab, timeout, _: slab.write(b"12345678", 0, timeout)),
    ("readv", lambda slab, timeout, target: slab.readv([(0, target)], timeout)),
    ("writev", lambda slab, timeout, _: slab.writev([(0, b"abc")], timeout)),
    ("load", lambda slab, timeout, _: slab.load(0, timeout)),
    ("store", lambda slab, timeout, _: slab.store(0, 1, timeout)),
    ("fetch_add", lambda slab, timeout, _: slab.fetch_add(0, 1, timeout)),
    ("compare_swap", lambda slab, timeout, _: slab.compare_swap(0, 0, 1, timeout)),
]


@pytest.mark.parametrize(
    "timeout", [0, -1, -0.5, float("nan"), "5", True, [], 10**400], ids=lambda value: repr(value)[:8]
)
def test_timeout_that_cannot_be(slab: AnySlab, target: bytearray, timeout: object) -> None:
    """Also where nobody is waited for; the control calls take no other."""
    refuse(TIMEOUTS, timeout, target, slab, farpool.InvalidArgument)


def test_missing_and_unknown_arguments(slab: AnySlab) -> None:
    unchecked = cast(Any, slab)
    for call in (unchecked.read, unchecked.write, unchecked.load, unchecked.store, unchecked.readv):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        unchecked.read(8, place=0)


# Allocating and opening -------------------------------------------------------------------------------------


def refused(pool: AnyPool, values: list[Any], call: Callable[[Any], object]) -> None:
    """See that each value is called a mistake, and that none made a slab."""
    for value in values:
        try:
            call(value)
        except farpool.InvalidArgument:
            continue
        pytest.fail(f"{value!r} is taken")
    assert pool.stat().slabs == 0


def test_size_that_cannot_be(pool: AnyPool) -> None:
    wrong = [0, -1, -(2**70), "0", "12XB", "", "lots", 2**62, 2**200, 1.5, None, b"8", "1.3B", True]
    refused(pool, wrong, pool.allocate)


@pytest.mark.parametrize("size", ["1TiB", 2**61])
def test_larger_than_the_pool(pool: AnyPool, size: int | str) -> None:
    with pytest.raises(farpool.PoolFull, match=r"asked for .* free") as caught:
        pool.allocate(size)
    assert {"asked", "free", "capacity"} <= set(caught.value.details)
    assert isinstance(caught.value, MemoryError)


def test_name_that_cannot_be(pool: AnyPool) -> None:
    wrong = ["", "a\nb", "a\0", "\x7f", "n" * 256, "é" * 128, "\ud800", 5, b"x"]
    refused(pool, wrong, lambda name: pool.allocate(8, name=name))


def test_name_taken(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(8, name="taken")
    for session in (pool, other):
        with pytest.raises(farpool.NameTaken):
            session.allocate(8, name="taken")
    slab.free()
    other.allocate(16, name="taken").free()


@pytest.mark.parametrize("name", ["é" * 127, "a b/../c", "n" * 255, "片"])
def test_name_of_any_letters(pool: AnyPool, name: str) -> None:
    slab = pool.allocate(8, name=name)
    assert pool.open(name).id == slab.id


def test_lease_that_cannot_be(pool: AnyPool) -> None:
    wrong: list[object] = [0, -1, "forever", float("nan"), float("inf"), None, True, [], "-5"]
    refused(pool, wrong, lambda lease: pool.allocate(8, lease=lease))


def test_unknown_slab(pool: AnyPool) -> None:
    for slab in ("no such slab", 10**9):
        with pytest.raises(farpool.SlabNotFound) as caught:
            pool.open(slab)
        assert isinstance(caught.value, LookupError)
    refused(pool, [None, 1.5, b"x", True, 0, -1, 2**80, ""], pool.open)
    refused(pool, ["w", "", None, "RW", 1], lambda mode: pool.open("x", mode=mode))
