"""Many parts of one size, described by an array of offsets: what a batch of as many buffers does, and no more."""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.property.profile import PROFILE

import farpool

if TYPE_CHECKING:
    from tests.conformance.driving import AnyPool, AnySlab

NBYTES = 4096
DATA = random.Random(5).randbytes(NBYTES)
MANY = 15_000
PART = 4096

Offsets = Callable[[list[int]], Any]

FORMS: dict[str, Offsets] = {
    "int64": lambda offsets: np.array(offsets, np.int64),
    "uint64": lambda offsets: np.array(offsets, np.uint64),
    "array q": lambda offsets: array("q", offsets),
    "array Q": lambda offsets: array("Q", offsets),
    "memoryview": lambda offsets: memoryview(array("q", [7, *offsets]))[1:],
    "ctypes": lambda offsets: (ctypes.c_int64 * len(offsets))(*offsets),
    "column": lambda offsets: np.ascontiguousarray(np.array([offsets, offsets]).T[:, 0]),
    "read-only": lambda offsets: memoryview(array("q", offsets)).toreadonly(),
}


@st.composite
def draws(draw: st.DrawFn) -> tuple[list[int], int]:
    """Draw offsets, which may overlap and touch the end, and the size of a part."""
    nbytes = draw(st.sampled_from([0, 1, 3, 8, 64, 65, 1000, NBYTES - 1, NBYTES]) | st.integers(0, NBYTES))
    return draw(st.lists(st.integers(0, NBYTES - nbytes), max_size=40)), nbytes


def test_equal_to_batches(slab: AnySlab) -> None:
    """For one slab, so that it costs no session a try."""

    @PROFILE
    @given(draws())
    @example(([], 8))
    @example(([NBYTES] * 3, 0))
    def check(drawn: tuple[list[int], int]) -> None:
        offsets, nbytes = drawn
        slab.write(DATA)
        out = bytearray(b"\xee" * (len(offsets) * nbytes + 2))
        parts = memoryview(out)[1:-1]
        assert slab.gather(array("q", offsets), nbytes, parts) == len(offsets) * nbytes
        targets = [bytearray(nbytes) for _ in offsets]
        assert slab.readv(zip(offsets, targets, strict=True)) == len(offsets) * nbytes
        assert out == b"\xee" + b"".join(targets) + b"\xee"
        apart = sorted({offset // (nbytes or 1) * nbytes for offset in offsets})
        random.Random(1).shuffle(apart)
        source = random.Random(nbytes).randbytes(len(apart) * nbytes)
        assert slab.scatter(array("q", apart), nbytes, source) == len(source)
        expected = bytearray(DATA)
        for number, offset in enumerate(apart):
            expected[offset : offset + nbytes] = source[number * nbytes : (number + 1) * nbytes]
        assert slab.read(NBYTES) == expected

    check()


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_any_array_of_long_integers(slab: AnySlab, form: Offsets) -> None:
    slab.write(DATA)
    offsets = [1000, 3, NBYTES - 8, 3]
    out = np.zeros((4, 2), np.uint32)
    assert slab.gather(form(offsets), 8, out) == 32
    assert out.tobytes() == b"".join(DATA[offset : offset + 8] for offset in offsets)
    assert slab.scatter(form([8, 2000]), 16, out) == 32
    assert slab.read(16, 2000) == out.tobytes()[16:]


def test_nothing_at_all(slab: AnySlab) -> None:
    nothing = np.array([], np.int64)
    assert slab.gather(nothing, 8, bytearray()) == slab.scatter(nothing, 8, b"") == 0
    assert slab.gather(np.array([0, NBYTES]), 0, bytearray()) == 0
    assert slab.scatter(np.array([0, NBYTES]), 0, b"") == 0


def test_parts_that_overlap(slab: AnySlab) -> None:
    assert slab.scatter(array("q", [0, 50]), 100, b"a" * 100 + b"b" * 100) == 200
    assert slab.read(50) == b"a" * 50
    assert slab.read(50, 100) == b"b" * 50
    assert set(slab.read(50, 50)) <= set(b"ab")


@pytest.mark.parametrize("count", [1, 4095, 4096, 4097, MANY])
def test_many_parts(pool: AnyPool, count: int) -> None:
    """More than a request takes, in no order."""
    rng = np.random.default_rng(count)
    slab = pool.allocate(count * 9)
    offsets = rng.permutation(count).astype(np.int64) * 9
    source = rng.integers(0, 256, (count, 7), np.uint8)
    assert slab.scatter(offsets, 7, source) == count * 7
    whole = np.zeros((count, 9), np.uint8)
    whole[offsets // 9, :7] = source
    assert slab.read(slab.nbytes) == whole.tobytes()
    out = np.zeros_like(source)
    assert slab.gather(offsets, 7, out) == count * 7
    assert np.array_equal(out, source)


def test_15000_parts_of_4_kib(pool: AnyPool) -> None:
    rng = np.random.default_rng(1)
    slab = pool.allocate(MANY * PART)
    whole = rng.integers(0, 256, (MANY, PART), np.uint8)
    offsets = rng.permutation(MANY) * PART
    assert slab.scatter(offsets, PART, whole) == MANY * PART
    out = np.zeros((MANY, PART), np.uint8)
    assert slab.gather(offsets[::-1].copy(), PART, out) == MANY * PART
    assert np.array_equal(out[::-1], whole)
    assert slab.read(PART, int(offsets[9])) == whole[9].tobytes()


def test_large_parts(pool: AnyPool) -> None:
    size = (5 << 20) + 3
    slab = pool.allocate(3 * size)
    source = random.Random(3).randbytes(2 * size)
    assert slab.scatter(array("q", [2 * size, 0]), size, source) == 2 * size
    out = bytearray(3 * size)
    assert slab.gather(array("q", [0, size, 2 * size]), size, out) == 3 * size
    assert out == source[size:] + bytes(size) + source[:size]


# What cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [NBYTES - 7, NBYTES, 2**62, 2**63 - 1, -1, -8, -(2**63)])
def test_one_part_past_the_end_and_no_byte_moves(slab: AnySlab, offset: int) -> None:
    offsets = array("q", [0, 8, offset, NBYTES])
    out = bytearray(b"\xee" * 32)
    with pytest.raises(farpool.OutOfBounds, match=rf"part 2 of 4.* {offset}\D") as caught:
        slab.gather(offsets, 8, out)
    assert (caught.value.details["part"], caught.value.details["offset"]) == (2, offset)
    assert out == b"\xee" * 32
    with pytest.raises(farpool.OutOfBounds, match="part 2 of 4"):
        slab.scatter(offsets, 8, out)
    assert slab.read(NBYTES) == bytes(NBYTES)


def test_offsets_of_64_bits_without_a_sign(slab: AnySlab) -> None:
    with pytest.raises(farpool.OutOfBounds, match=str(2**64 - 1)):
        slab.gather(np.array([2**64 - 1], np.uint64), 1, bytearray(1))


def test_parts_that_are_larger_than_the_slab(slab: AnySlab) -> None:
    with pytest.raises(farpool.OutOfBounds, match="part 0 of 1"):
        slab.gather(array("q", [0]), NBYTES + 1, bytearray(NBYTES + 1))


def test_every_part_of_a_large_batch_is_checked_first(pool: AnyPool) -> None:
    slab = pool.allocate(6000)
    offsets = np.arange(6000)
    with pytest.raises(farpool.OutOfBounds, match="part 5999 of 6000"):
        slab.scatter(offsets, 2, bytes([1]) * 12_000)
    assert slab.read(6000) == bytes(6000)


ARRAYS: dict[str, tuple[Any, type[Exception], str]] = {
    "list": ([0, 8], farpool.UnsuitableBuffer, "numpy.asarray"),
    "none": (None, farpool.UnsuitableBuffer, "numpy.asarray"),
    "bytes": (bytes(16), farpool.UnsuitableBuffer, "numpy.asarray"),
    "short": (array("i", [0, 8]), farpool.UnsuitableBuffer, "numpy.asarray"),
    "floats": (np.array([0.0, 8.0]), farpool.UnsuitableBuffer, "numpy.asarray"),
    "other order": (np.array([0, 8], ">i8"), farpool.UnsuitableBuffer, "numpy.asarray"),
    "objects": (np.array([0, 8], object), farpool.UnsuitableBuffer, "numpy.asarray"),
    "structures": (np.zeros(2, [("a", "i4"), ("b", "i4")]), farpool.UnsuitableBuffer, "numpy.asarray"),
    "a column": (np.zeros((2, 2), np.int64)[:, 0], farpool.InvalidArgument, "ascontiguousarray"),
    "two dimensions": (np.zeros((1, 2), np.int64), farpool.InvalidArgument, "dimension"),
    "none at all": (np.array(0), farpool.InvalidArgument, "dimension"),
    "times": (np.zeros(2, "M8[s]"), farpool.InvalidArgument, "numpy.int64"),
}


@pytest.mark.parametrize(("offsets", "error", "advice"), ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_hold_no_offsets(slab: AnySlab, offsets: Any, error: type[Exception], advice: str) -> None:
    out = bytearray(b"\xee" * 16)
    for move in (slab.gather, slab.scatter):
        with pytest.raises(error, match=advice):
            move(offsets, 8, out)
    assert out == b"\xee" * 16
    assert slab.read(16) == bytes(16)


@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_a_buffer_of_another_size(slab: AnySlab, length: int) -> None:
    for move in (slab.gather, slab.scatter):
        with pytest.raises(farpool.InvalidArgument, match=rf"2 parts of 8 bytes are 16 bytes.* has {length}\b"):
            move(array("q", [0, 8]), 8, bytearray(length))


def test_sizes_and_buffers_that_cannot_be(slab: AnySlab) -> None:
    offsets = array("q", [0, 8])
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (farpool.InvalidArgument, lambda: slab.gather(offsets, -8, bytearray(16))),
        (farpool.InvalidArgument, lambda: slab.gather(offsets, 2**62, bytearray(16))),
        (farpool.OutOfBounds, lambda: slab.gather(offsets, 2**70, bytearray(16))),
        (TypeError, lambda: slab.gather(offsets, "8", bytearray(16))),  # type: ignore[arg-type]
        (farpool.UnsuitableBuffer, lambda: slab.gather(offsets, 8, bytes(16))),
        (farpool.UnsuitableBuffer, lambda: slab.gather(offsets, 8, "0" * 16)),  # type: ignore[arg-type]
        (farpool.InvalidArgument, lambda: slab.gather(offsets, 8, np.zeros(32, np.uint8)[::2])),
        (farpool.UnsuitableBuffer, lambda: slab.scatter(offsets, 8, np.array([1, 2], object))),
        (farpool.InvalidArgument, lambda: slab.gather(offsets, 8, bytearray(16), timeout=0)),
    ]
    for error, call in calls:
        with pytest.raises(error):
            call()
    assert slab.read(16) == bytes(16)


def test_the_buffer_is_free_again(slab: AnySlab) -> None:
    offsets, out = array("q", [0, 8]), bytearray(16)
    slab.gather(offsets, 8, out)
    with pytest.raises(farpool.OutOfBounds) as caught:
        slab.gather(array("q", [0, NBYTES]), 8, out)
    offsets.append(16)
    out.append(1)
    assert caught.value.__traceback__ is not None


# Committed bytes, and drafts --------------------------------------------------------------------------------


@pytest.mark.parametrize("checksum", [True, False])
def test_drafts_and_what_was_committed(pool: AnyPool, checksum: bool) -> None:
    count, size = 400, 1000
    slab = pool.allocate(count * size)
    data = random.Random(8).randbytes(count * size)
    order = random.Random(9).sample(range(count), count)
    offsets = array("q", [place * size for place in order])
    draft = slab.reserve(checksum=checksum)
    assert draft.scatter(offsets, size, b"".join(data[offset : offset + size] for offset in offsets)) == len(data)
    out = bytearray(size)
    assert draft.gather(offsets[:1], size, out) == size
    assert out == data[offsets[0] : offsets[0] + size]
    draft.commit()
    reader = pool.open(slab.id, mode="r")
    for handle in (slab, reader):
        assert handle.read(len(data)) == data
        whole = bytearray(len(data))
        assert handle.gather(array("q", range(0, len(data), size)), size, whole) == len(data)
        assert whole == data
        assert handle.gather(array("q"), size, bytearray()) == handle.gather(offsets, 0, bytearray()) == 0
        with pytest.raises(farpool.OutOfBounds, match="part 1 of 2"):
            handle.gather(array("q", [0, len(data)]), 1, bytearray(2))
        with pytest.raises(farpool.ReadOnly):
            handle.scatter(offsets[:1], 1, b"x")
    slab.free()


def test_memory_that_was_replaced_is_followed(pool: AnyPool, other: AnyPool) -> None:
    slab = other.allocate(NBYTES, name="followed")
    reader = pool.open("followed", mode="r")
    out = bytearray(8)
    offsets = array("q", [NBYTES - 4, 0])
    for number in range(1, 4):
        draft = slab.reserve()
        draft.write(bytes([number]) * NBYTES)
        draft.commit()
        assert reader.gather(offsets, 4, out) == 8
        assert out == bytes([number]) * 8
    slab.free()
