"""The words of sessions: each session's own, kept over a restart, and another's only once it has ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from farpool.native.mapping import Mapping
from farpool.protocol.errors import PermissionDenied
from farpool.server.device_generations import DeviceGenerations
from farpool.server.generations import SLOTS, GenerationFile, Generations
from farpool.server.session_words import SessionWords
from farpool.transports.cxl.superblock import words_end

DEVICE_WORDS = 8

Restart = Callable[[], Generations]


@pytest.fixture(params=["file", "device", "incoherent device"])
def restart(request: pytest.FixtureRequest) -> Iterator[Restart]:
    """Begin anew on the same words."""
    with ExitStack() as undo:
        folder = os.open("/dev/shm", os.O_RDONLY | os.O_DIRECTORY)
        undo.callback(os.close, folder)
        name = f"farpool-words-{os.getpid()}"
        memory = os.memfd_create("device")
        undo.callback(os.close, memory)
        os.ftruncate(memory, words_end(DEVICE_WORDS))

        def begin() -> Generations:
            if request.param == "file":
                words: Generations = GenerationFile(f"/dev/shm/{name}", folder)
            else:
                header = Mapping(memory, words_end(DEVICE_WORDS), writable=True)
                undo.callback(header.close)
                incoherent = request.param != "device"
                words = DeviceGenerations(header, DEVICE_WORDS, "device", incoherent=incoherent)
            undo.callback(words.close)
            return words

        if request.param == "file":
            undo.callback(os.unlink, f"/dev/shm/{name}")
        yield begin


@pytest.fixture
def memory() -> Iterator[Mapping]:
    """A page of zeroes."""
    fd = os.memfd_create("words")
    os.ftruncate(fd, 4096)
    with Mapping(fd, 4096, writable=True) as mapping:
        os.close(fd)
        yield mapping


def begin(restart: Restart) -> Generations:
    words = restart()
    words.restore({})
    assert words.restore_sessions(set()) == {}
    return words


def test_each_has_a_word_of_its_own_apart_from_generations(restart: Restart) -> None:
    words = begin(restart)
    slot = words.take_slot()
    words.store(slot, 99)
    offsets = [words.sessions.begin(number) for number in (5, 6, 7)]
    assert len({slot * 8, *offsets}) == 4
    assert [words.load(offset // 8) for offset in offsets] == [5, 6, 7]
    assert words.load(slot) == 99
    assert all(offset + 8 <= words_end(DEVICE_WORDS) or offset >= 2 * SLOTS * 8 for offset in offsets)


def test_an_ended_session_leaves_its_word_to_another(restart: Restart) -> None:
    words = begin(restart)
    first, second = words.sessions.begin(5), words.sessions.begin(6)
    words.sessions.end(first)
    assert [words.load(offset // 8) for offset in (first, second)] == [0, 6]
    assert words.sessions.begin(7) == first
    assert words.load(first // 8) == 7


def test_a_restart_keeps_the_words_of_those_who_may_come_back(restart: Restart) -> None:
    words = begin(restart)
    offsets = {number: words.sessions.begin(number) for number in (5, 6, 7, 8)}
    words.close()
    words = restart()
    words.restore({})  # of slabs, and not of sessions
    assert [words.load(offset // 8) for offset in offsets.values()] == [5, 6, 7, 8]
    assert words.restore_sessions({6, 8, 9}) == {6: offsets[6], 8: offsets[8]}
    assert [words.load(offset // 8) for offset in offsets.values()] == [0, 6, 0, 8]
    fresh = [words.sessions.begin(number) for number in (10, 11, 12)]
    assert fresh[:2] == [offsets[5], offsets[7]]
    assert fresh[2] not in offsets.values()


def test_the_largest_numbers_are_found_and_nothing_that_was_never_one(restart: Restart) -> None:
    words = begin(restart)
    assert words.largest() == (0, 0)
    slots = [words.take_slot() for _ in range(3)]
    for slot, generation in zip(slots, (20, 40, 1 << 63), strict=True):
        words.store(slot, generation)
    for number in (30, 10, (1 << 64) - 1):
        words.sessions.begin(number)
    assert words.largest() == (40, 30)


def test_a_session_has_one_word_whatever_the_memory_held(restart: Restart) -> None:
    words = begin(restart)
    offset = words.sessions.begin(5)
    words.store(offset // 8 + 3, 5)
    words.close()
    words = restart()
    words.restore({})
    assert words.restore_sessions({5}) == {5: offset}
    assert words.load(offset // 8 + 3) == 0


def test_there_are_as_many_sessions_as_words(memory: Mapping) -> None:
    words = SessionWords(memory, 64, 2)
    assert [words.begin(5), words.begin(6)] == [64, 72]
    with pytest.raises(PermissionDenied, match="words for 2 sessions"):
        words.begin(7)
    assert memory.load(80) == 0
