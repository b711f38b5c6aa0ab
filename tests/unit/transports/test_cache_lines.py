"""Which cache lines are written back and dropped, and what that does where caches are not coherent."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farpool.native import cache_lines
from farpool.native.cxl_region import CxlRegion
from farpool.native.line_model import LineModel
from farpool.native.mapping import Mapping
from farpool.protocol.errors import InvalidArgument, OutOfBounds

LINE = cache_lines.line_bytes()
NBYTES = 64 << 10
GENERATION = 7


class Fabric:
    """Memory that several hosts map, each behind caches of its own."""

    def __init__(self, undo: ExitStack) -> None:
        self._undo = undo
        self.fd = os.memfd_create("fabric")
        undo.callback(os.close, self.fd)
        os.ftruncate(self.fd, NBYTES)
        self.words = Mapping(self._words(), 4096, writable=True)
        self.words.store(0, GENERATION)

    def _words(self) -> int:
        fd = os.memfd_create("words")
        self._undo.callback(os.close, fd)
        os.ftruncate(fd, 4096)
        return fd

    @property
    def memory(self) -> bytes:
        return os.pread(self.fd, NBYTES, 0)

    def host(self, fault: str = "", *, writable: bool = True) -> CxlRegion:
        mapping = Mapping(self.fd, NBYTES, writable=writable)
        model = LineModel(mapping, fault)
        region = CxlRegion(mapping, NBYTES, self.words, 0, GENERATION, writable, True, "s", None, "software", model)
        self._undo.callback(region.close)
        return region

    def plain(self, coherence: str) -> CxlRegion:
        mapping = Mapping(self.fd, NBYTES, writable=True)
        region = CxlRegion(mapping, NBYTES, self.words, 0, GENERATION, True, True, "s", None, coherence)
        self._undo.callback(region.close)
        return region


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with ExitStack() as undo:
        yield Fabric(undo)


# Which lines ----------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 40), st.integers(0, 5000))
def test_the_lines_of_a_range_cover_it_and_nothing_more(address: int, nbytes: int) -> None:
    touched = {byte // LINE * LINE for byte in range(address, address + nbytes)}
    assert cache_lines.lines_of(address, nbytes) == sorted(touched)


@pytest.mark.parametrize(
    ("offset", "nbytes", "lines"),
    [
        (0, 0, []),
        (LINE - 1, 1, [0]),
        (LINE - 1, 2, [0, 1]),
        (1, LINE, [0, 1]),
        (LINE, LINE, [1]),
        (5, 3 * LINE, [0, 1, 2, 3]),
    ],
)
def test_a_flush_writes_back_those_lines_and_no_other(
    fabric: Fabric, offset: int, nbytes: int, lines: list[int]
) -> None:
    host = fabric.host()
    view = host.view()
    view[:] = b"\x01" * NBYTES
    assert not any(fabric.memory)
    host.flush(offset, nbytes)
    memory = fabric.memory
    changed = [line for line in range(NBYTES // LINE) if any(memory[line * LINE : (line + 1) * LINE])]
    view.release()
    assert changed == lines
    assert cache_lines.lines_of(offset, nbytes) == [line * LINE for line in lines]


def test_an_invalidate_fetches_those_lines_and_no_other(fabric: Fabric) -> None:
    host = fabric.host(writable=False)
    view = host.view()
    os.pwrite(fabric.fd, b"\x01" * NBYTES, 0)
    host.invalidate(LINE - 1, 2)
    assert bytes(view[: 3 * LINE]) == b"\x01" * (2 * LINE) + bytes(LINE)
    view.release()


# What is promised -----------------------------------------------------------------------------------


def test_what_one_host_writes_another_reads(fabric: Fabric) -> None:
    a, b = fabric.host(), fabric.host()
    for size in (1, LINE - 1, LINE, LINE + 1, 40_000):
        data = os.urandom(size)
        a.write(data, 3)
        assert b.read(size, 3) == data
        a.writev([(5, data[:7]), (700, data)])
        buffer = bytearray(size)
        assert b.readv([(700, buffer)]) == size
        assert buffer == data
        half = (size + 1) // 2
        offsets, data = array("q", [800 + half, 90]), os.urandom(2 * half)
        a.scatter(offsets, half, data)
        buffer = bytearray(2 * half)
        assert b.gather(offsets, half, buffer) == 2 * half
        assert buffer == data


def test_neighbours_in_one_line_survive_turns(fabric: Fabric) -> None:
    a, b = fabric.host(), fabric.host()
    for turn in range(4):
        a.write(bytes([turn + 1]) * 3, LINE - 1)
        b.write(bytes([turn + 101]) * 3, LINE + 2)
        a.store(3 * LINE, turn)
        b.store(3 * LINE + 8, turn)
        assert a.read(6, LINE - 1) == bytes([turn + 1] * 3 + [turn + 101] * 3) == b.read(6, LINE - 1)
        assert b.load(3 * LINE) == turn == a.load(3 * LINE + 8)


def test_words_are_seen_at_once(fabric: Fabric) -> None:
    a, b = fabric.host(), fabric.host()
    a.store(8, 5)
    assert b.fetch_add(8, 2) == 5
    assert a.compare_swap(8, 7, 9) == 7
    assert b.load(8) == 9
    assert a.compare_swap(8, 7, 11) == 9


def test_views_publish_and_observe(fabric: Fabric) -> None:
    """The protocol of docs/cxl.md, and that each of its steps is needed."""
    a, b = fabric.host(), fabric.host()
    ours, theirs = a.view(), b.view()
    ours[100:105] = b"hello"
    a.store(0, 1)  # the flag, too early
    assert b.load(0) == 1
    b.invalidate(100, 5)
    assert bytes(theirs[100:105]) == bytes(5)
    a.flush(100, 5)
    assert bytes(theirs[100:105]) == bytes(5)
    b.invalidate(100, 5)
    assert bytes(theirs[100:105]) == b"hello"
    ours.release()
    theirs.release()


def test_a_view_begins_with_what_the_memory_holds(fabric: Fabric) -> None:
    a, b = fabric.host(), fabric.host()
    a.write(b"new", 0)
    with b.view() as view:
        assert bytes(view[:3]) == b"new"


def test_letting_go_leaves_no_store_in_a_cache(fabric: Fabric) -> None:
    host = fabric.host()
    with host.view() as view:
        view[9] = 9
    host.close()
    assert fabric.memory[9] == 9


# A flush that is missing does not go unnoticed --------------------------------------------------------


def test_a_missing_flush_shows(fabric: Fabric) -> None:
    careless, reader = fabric.host("flush"), fabric.host()
    careless.write(b"lost", 0)
    careless.store(64, 1)
    assert careless.read(4) == bytes(4) or careless.read(4) == b"lost"
    assert reader.read(4) == bytes(4)
    assert reader.load(64) == 0


def test_a_missing_invalidate_shows(fabric: Fabric) -> None:
    writer, careless = fabric.host(), fabric.host("invalidate")
    writer.write(b"fresh", 0)
    assert careless.read(5) == bytes(5)


# The processor's own instructions ---------------------------------------------------------------------


@pytest.mark.parametrize("coherence", ["hardware", "software"])
def test_a_region_works_with_and_without_them(fabric: Fabric, coherence: str) -> None:
    a, b = fabric.plain(coherence), fabric.plain(coherence)
    data = os.urandom(50_001)
    a.write(data, 13)
    assert b.read(len(data), 13) == data
    a.flush()
    b.invalidate(1, 1)
    a.flush(NBYTES, 0)
    assert a.fetch_add(8 * 1000, 1) == int.from_bytes(data[7987:7995], "little")
    for call in (a.flush, a.invalidate):
        with pytest.raises(OutOfBounds):
            call(NBYTES, 1)


def test_the_instructions_are_those_of_this_processor() -> None:
    clean, evict = cache_lines.instructions()
    assert (clean, evict) in {
        ("clwb", "clflushopt"),
        ("clflushopt", "clflushopt"),
        ("clflush", "clflush"),
        ("dc cvac", "dc civac"),
    }
    flags: set[str] = set()
    with Path("/proc/cpuinfo").open() as facts:
        for line in facts:
            if line.startswith("flags"):
                flags = set(line.split())
                break
    if flags:
        assert clean == next(name for name in ("clwb", "clflushopt", "clflush") if name in flags)


@pytest.mark.parametrize("call", [cache_lines.flush_memory, cache_lines.drop_memory])
def test_buffers_keep_what_they_hold(call: Callable[[bytearray, int, int], None]) -> None:
    memory = bytearray(os.urandom(1000))
    before = bytes(memory)
    call(memory, 3, 900)
    call(memory, 1000, 0)
    assert memory == before
    with pytest.raises(OutOfBounds):
        call(memory, 101, 900)


def test_another_word_for_coherence_is_refused(fabric: Fabric) -> None:
    with pytest.raises(InvalidArgument, match="hardware"):
        fabric.plain("none")
