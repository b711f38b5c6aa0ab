"""Bytes come back as they were written: one buffer, many, none, of every kind, at every offset."""

from __future__ import annotations

import array
import ctypes
import mmap
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.conformance.driving import AnyPool, AnySlab

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

MIB = 1 << 20
SIZES = [1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 65537, MIB + 3]


def noise(nbytes: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def test_facts(pool: AnyPool, transport: str) -> None:
    slab = pool.allocate("4KiB", name="facts")
    assert (slab.nbytes, slab.name, slab.mode, slab.transport) == (4096, "facts", "rw", transport)
    assert slab.lease == "session"
    assert slab.id > 0
    assert slab.generation > 0
    assert pool.transport == transport


@pytest.mark.parametrize("nbytes", SIZES)
def test_round_trip(pool: AnyPool, nbytes: int) -> None:
    slab = pool.allocate(nbytes + 13)
    data = noise(nbytes)
    assert slab.write(data, offset=5) == nbytes
    assert slab.read(nbytes, offset=5) == data
    assert slab.read(5) == bytes(5)
    assert slab.read(8, nbytes + 5) == bytes(8)
    buffer = bytearray(b"\xee" * (nbytes + 6))
    assert slab.read_into(memoryview(buffer)[3:-3], 5) == nbytes
    assert buffer == b"\xee\xee\xee" + data + b"\xee\xee\xee"


def test_last_byte_and_whole_slab(slab: AnySlab) -> None:
    assert slab.write(b"z", slab.nbytes - 1) == 1
    assert slab.read(slab.nbytes) == bytes(slab.nbytes - 1) + b"z"


def test_nothing_at_all(slab: AnySlab) -> None:
    for offset in (0, 1, slab.nbytes):
        assert slab.read(0, offset) == b""
        assert slab.write(b"", offset) == 0
        assert slab.read_into(bytearray(), offset) == 0
    assert slab.readv([]) == slab.writev([]) == 0
    assert slab.readv([(0, bytearray())] * 3) == slab.writev([(slab.nbytes, b"")] * 3) == 0
    assert slab.read(slab.nbytes) == bytes(slab.nbytes)


def test_what_a_read_only_mapping_holds(pool: AnyPool, tmp_path: Path) -> None:
    """A file's pages, which no device may write to: what weights are published from."""
    path = tmp_path / "weights"
    path.write_bytes(noise(MIB))
    slab = pool.allocate(MIB)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert slab.write(mapped) == MIB
    assert slab.read(MIB) == noise(MIB)


def test_64_mib(pool: AnyPool) -> None:
    slab = pool.allocate("64MiB")
    data = np.frombuffer(noise(MIB), np.uint8)
    whole = np.tile(data, 64)
    whole[::4097] += 1
    assert slab.write(whole) == 64 * MIB
    back = np.zeros_like(whole)
    assert slab.read_into(back) == 64 * MIB
    assert np.array_equal(back, whole)
    assert slab.read(MIB, 63 * MIB) == whole[-MIB:].tobytes()


def plain_view(data: bytes) -> Buffer:
    return memoryview(bytearray(data))


def cast_view(data: bytes) -> Buffer:
    return memoryview(bytearray(data)).cast("H", (4, 8))


def numpy_array(data: bytes) -> Buffer:
    return np.frombuffer(data, "f8").reshape(2, 4).copy()


def plain_array(data: bytes) -> Buffer:
    return array.array("I", data)


def ctypes_array(data: bytes) -> Buffer:
    return (ctypes.c_uint8 * 64)(*data)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(bytearray, id="bytearray"),
        pytest.param(plain_view, id="memoryview"),
        pytest.param(cast_view, id="cast-memoryview"),
        pytest.param(numpy_array, id="numpy"),
        pytest.param(plain_array, id="array"),
        pytest.param(ctypes_array, id="ctypes"),
    ],
)
def test_any_contiguous_buffer(slab: AnySlab, kind: Any) -> None:
    data = bytes(range(64))
    source: Buffer = kind(data)
    target: Buffer = kind(bytes(64))
    assert slab.write(source, 100) == 64
    assert slab.read_into(target, 100) == 64
    assert bytes(memoryview(target).cast("B")) == data
    assert slab.writev([(300, source), (400, source)]) == 128
    assert slab.readv([(300, target)]) == 64
    assert slab.read(64, 400) == data


def test_read_only_sources(slab: AnySlab) -> None:
    frozen = np.arange(16, dtype=np.uint8)
    frozen.flags.writeable = False
    assert slab.write(frozen) == 16
    assert slab.writev([(16, b"abc"), (19, memoryview(b"def")), (22, frozen)]) == 22
    assert slab.read(38) == frozen.tobytes() + b"abcdef" + frozen.tobytes()


# Many parts in one go ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 33, 4096, 4097, 9000])
def test_many_parts(pool: AnyPool, count: int) -> None:
    slab = pool.allocate(count * 7 + 9)
    data = noise(count * 7)
    order = list(range(count))
    random.Random(count).shuffle(order)
    # Parts of 0 to 6 bytes, in no order, each at a place of its own.
    sizes = [place % 7 for place in order]
    sources = [(place * 7, data[place * 7 : place * 7 + size]) for place, size in zip(order, sizes, strict=True)]
    assert slab.writev(sources) == sum(sizes)
    expected = bytearray(slab.nbytes)
    for offset, part in sources:
        expected[offset : offset + len(part)] = part
    assert slab.read(slab.nbytes) == expected
    targets = [(offset, bytearray(len(part))) for offset, part in sources]
    assert slab.readv(iter(targets)) == sum(sizes)
    assert [bytes(target) for _, target in targets] == [part for _, part in sources]


def test_large_and_small_parts_mixed(pool: AnyPool) -> None:
    slab = pool.allocate("12MiB")
    parts = [
        (0, noise(3 * MIB)),
        (3 * MIB, b""),
        (3 * MIB, b"x"),
        (4 * MIB + 1, noise(5 * MIB + 1, 2)),
        (12 * MIB - 3, b"end"),
    ]
    assert slab.writev(parts) == sum(len(part) for _, part in parts)
    targets = [(offset, bytearray(len(part))) for offset, part in reversed(parts)]
    assert slab.readv(targets) == sum(len(part) for _, part in parts)
    assert [bytes(target) for _, target in reversed(targets)] == [part for _, part in parts]
    assert slab.read(MIB - 1, 3 * MIB + 1) == bytes(MIB - 1)


def test_parts_that_overlap(slab: AnySlab) -> None:
    slab.write(bytes(range(200)))
    first, second, third = bytearray(100), bytearray(100), bytearray(100)
    assert slab.readv([(0, first), (50, second), (50, third)]) == 300
    assert first == bytes(range(100))
    assert second == third == bytes(range(50, 150))
    assert slab.writev([(1000, b"a" * 100), (1050, b"b" * 100)]) == 200
    assert slab.read(50, 1000) == b"a" * 50
    assert slab.read(50, 1100) == b"b" * 50
    assert set(slab.read(50, 1050)) <= set(b"ab")


def test_one_buffer_for_many_parts(slab: AnySlab) -> None:
    slab.write(noise(4096))
    whole = bytearray(4096)
    view = memoryview(whole)
    assert slab.readv([(start, view[start : start + 128]) for start in range(0, 4096, 128)]) == 4096
    assert whole == noise(4096)


# More than one handle and session ---------------------------------------------------------------------------


def test_sessions_see_each_others_bytes(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="shared")
    twin = other.open("shared")
    third = other.open(slab.id, mode="r")
    assert (twin.id, twin.generation, twin.nbytes) == (slab.id, slab.generation, 4096)
    slab.write(b"from the first")
    assert twin.read(14) == b"from the first"
    twin.write(b"from the second", 100)
    assert slab.read(15, 100) == third.read(15, 100) == b"from the second"
    third.close()
    assert twin.read(14) == b"from the first"


def test_slabs_keep_apart(pool: AnyPool) -> None:
    slabs = [pool.allocate(size) for size in (1, 100, 4096, 4097, 70000)]
    for number, slab in enumerate(slabs):
        slab.write(bytes([number + 1]) * slab.nbytes)
    for number, slab in enumerate(slabs):
        assert slab.read(slab.nbytes) == bytes([number + 1]) * slab.nbytes
