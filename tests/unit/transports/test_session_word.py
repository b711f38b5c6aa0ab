"""A region looks at its session's word too: from the session's end on it moves no byte, whatever the slab is doing."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from farpool.native import cache_lines
from farpool.native.cxl_region import CxlRegion
from farpool.native.mapping import Mapping
from farpool.protocol.errors import StaleSlab, TransportUnavailable

NBYTES = 8192
LARGE_BYTES = 1 << 20
PIECE_BYTES = 128 << 10
"""Most bytes that a call stores after one look at the words."""
GENERATION, SESSION = 7, 5
SESSION_WORD = 1024
THEIRS = bytes(range(256)) * (NBYTES // 256)

CALLS: dict[str, Callable[[CxlRegion], object]] = {
    "read": lambda region: region.read(64),
    "read_into": lambda region: region.read_into(bytearray(64)),
    "readv": lambda region: region.readv([(0, bytearray(8)), (64, bytearray(8))]),
    "write": lambda region: region.write(b"late"),
    "writev": lambda region: region.writev([(0, b"late"), (64, b"late")]),
    "gather": lambda region: region.gather(array("q", [0, 64]), 8, bytearray(16)),
    "scatter": lambda region: region.scatter(array("q", [0, 64]), 4, b"latelate"),
    "load": lambda region: region.load(8),
    "store": lambda region: region.store(8, 1),
    "fetch_add": lambda region: region.fetch_add(8, 1),
    "compare_swap": lambda region: region.compare_swap(0, int.from_bytes(THEIRS[:8], "little"), 1),
    "park": lambda region: region.park(8, int.from_bytes(THEIRS[8:16], "little"), 60.0),
    "notify": lambda region: region.notify(8),
    "flush": lambda region: region.flush(),
    "invalidate": lambda region: region.invalidate(),
    "view": lambda region: region.view(),
}


class Memory:
    """A slab, and the words that say whose it is."""

    def __init__(self, undo: ExitStack, coherence: str) -> None:
        self._undo = undo
        self._coherence = coherence
        self._bytes = self._file(NBYTES)
        os.pwrite(self._bytes, THEIRS, 0)
        self._words = self._file(LARGE_BYTES)
        self.words = Mapping(self._words, LARGE_BYTES, writable=True)
        self.words.store(0, GENERATION)
        self.words.store(SESSION_WORD, SESSION)

    def _file(self, nbytes: int) -> int:
        fd = os.memfd_create("memory")
        self._undo.callback(os.close, fd)
        os.ftruncate(fd, nbytes)
        return fd

    @property
    def contents(self) -> bytes:
        return os.pread(self._bytes, NBYTES, 0)

    def region(self, session_word: int = SESSION_WORD, session: int = SESSION) -> CxlRegion:
        return self._region(Mapping(self._bytes, NBYTES, writable=True), session_word, session)

    def over_the_words(self) -> CxlRegion:
        """Return the region of a slab that has the very words in it, as none of a server has."""
        return self._region(Mapping(self._words, LARGE_BYTES, writable=True), SESSION_WORD, SESSION)

    def _region(self, mapping: Mapping, session_word: int, session: int) -> CxlRegion:
        slab = (mapping, mapping.nbytes, self.words, 0, GENERATION, True, True, "s", None)
        region = CxlRegion(*slab, self._coherence, None, 0, session_word, session)
        self._undo.callback(region.close)
        return region


@pytest.fixture(params=["hardware", "software"])
def memory(request: pytest.FixtureRequest) -> Iterator[Memory]:
    if request.param == "software":
        try:
            cache_lines.instructions()
        except TransportUnavailable as error:
            pytest.skip(error.message)
    with ExitStack() as undo:
        yield Memory(undo, request.param)


@pytest.mark.parametrize("now", [0, SESSION + 1], ids=["ended", "another's"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_of_a_session_that_has_ended_moves_a_byte(memory: Memory, call: str, now: int) -> None:
    ours, others = memory.region(), memory.region(session_word=2048, session=9)
    memory.words.store(2048, 9)
    assert ours.read(NBYTES) == THEIRS
    memory.words.store(SESSION_WORD, now)
    with pytest.raises(StaleSlab):
        CALLS[call](ours)
    assert memory.contents == THEIRS
    assert others.read(NBYTES) == THEIRS


def test_a_session_that_lives_does_not_keep_a_slab_alive(memory: Memory) -> None:
    region = memory.region()
    memory.words.store(0, GENERATION + 1)
    with pytest.raises(StaleSlab):
        region.store(8, 1)
    assert memory.contents == THEIRS


def test_a_batch_is_not_gone_on_with(memory: Memory) -> None:
    """Here its first part ends the session, which whoever is stopped in the middle finds as well."""
    region = memory.over_the_words()
    with pytest.raises(StaleSlab) as caught:
        region.writev([(SESSION_WORD, bytes(8)), (2048, b"too late")])
    assert caught.value.details["begun"]
    assert memory.words.load(2048) == 0


def test_nor_are_parts_of_one_size(memory: Memory) -> None:
    region = memory.over_the_words()
    with pytest.raises(StaleSlab) as caught:
        region.scatter(array("q", [SESSION_WORD, 2048]), 8, bytes(8) + b"too late")
    assert caught.value.details["begun"]
    assert memory.words.load(2048) == 0


@pytest.mark.parametrize("call", ["write", "writev"])
def test_a_large_write_is_not_gone_on_with(memory: Memory, call: str) -> None:
    """Here its first piece ends the session, which whoever is stopped in its middle finds as well."""
    region = memory.over_the_words()
    late = bytes(8) + b"\xee" * (LARGE_BYTES - SESSION_WORD - 8)
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: region.write(late, SESSION_WORD),
        "writev": lambda: region.writev([(SESSION_WORD, late), (8, b"too late")]),
    }
    with pytest.raises(StaleSlab) as caught:
        calls[call]()
    assert caught.value.details["begun"]
    with memoryview(memory.words) as words:
        assert 0 < bytes(words).count(b"\xee") <= PIECE_BYTES
        assert bytes(words[8:16]) == bytes(8)


@pytest.mark.parametrize("shift", [0, 1, 64, 4097, PIECE_BYTES, PIECE_BYTES + 8, 5 * PIECE_BYTES + 3])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_large_write_of_the_slabs_own_bytes_moves_them(memory: Memory, shift: int, direction: str) -> None:
    region = memory.over_the_words()
    at = 2048
    length = LARGE_BYTES - at - 5 * PIECE_BYTES - 3
    before = os.urandom(LARGE_BYTES - at)
    region.write(before, at)
    region.flush()
    source, target = (at, at + shift) if direction == "up" else (at + shift, at)
    with region.view(source, length) as view:
        region.write(view, target)
    assert region.read(length, target) == before[source - at : source - at + length]


def test_where_the_server_has_no_such_word_the_generation_counts_alone(memory: Memory) -> None:
    region = memory.region(session_word=0, session=0)
    region.store(8, 1)
    assert region.load(8) == 1
