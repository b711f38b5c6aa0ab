"""The generation words: what a restart makes of them, and that slots are not mixed up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farpool.protocol.errors import PoolFull
from farpool.server import generations
from farpool.server.generations import SLOTS, GenerationFile

Opener = Callable[[], GenerationFile]


@pytest.fixture
def opened(memory_folder: Path) -> Iterator[Opener]:
    folder = os.open(memory_folder, os.O_RDONLY | os.O_DIRECTORY)
    made: list[GenerationFile] = []

    def open_file() -> GenerationFile:
        made.append(GenerationFile(f"{memory_folder}/generations", folder))
        return made[-1]

    yield open_file
    for file in made:
        file.close()
    os.close(folder)


def test_the_file_is_sparse_and_has_every_slot(opened: Opener, memory_folder: Path) -> None:
    file = opened()
    status = (memory_folder / "generations").stat()
    assert status.st_size == file.nbytes == 3 * SLOTS * 8  # words, marks, and the words of sessions
    assert status.st_blocks == 0
    file.restore({})
    file.take_slot()
    assert 128 << 10 <= (memory_folder / "generations").stat().st_blocks * 512 < 1 << 20  # words and marks


def test_marks_are_apart_from_words_and_gone_after_a_start(opened: Opener) -> None:
    file = opened()
    file.restore({})
    slot = file.take_slot()
    file.store(slot, 5)
    file.watch(slot, 9)
    assert file.load(slot) == 5
    assert file.load(slot + SLOTS) == 9
    file.restore({slot: 5})
    assert (file.load(slot), file.load(slot + SLOTS)) == (5, 0)


def test_slots_are_taken_once_and_lowest_first(opened: Opener) -> None:
    file = opened()
    file.restore({})
    assert [file.take_slot() for _ in range(4)] == [0, 1, 2, 3]
    file.release_slot(2)
    file.release_slot(1)
    assert [file.take_slot() for _ in range(3)] == [1, 2, 4]


def test_words_are_in_the_file_little_endian(opened: Opener, memory_folder: Path) -> None:
    file = opened()
    file.restore({})
    slot = file.take_slot()
    file.store(slot, 77)
    assert file.load(slot) == 77
    assert (memory_folder / "generations").read_bytes()[slot * 8 : slot * 8 + 8] == (77).to_bytes(8, "little")


def test_a_restart_rewrites_the_truth(opened: Opener) -> None:
    file = opened()
    file.restore({})
    for _ in range(20000):
        file.take_slot()
    for slot, word in ((0, 5), (3, 6), (19999, 7)):
        file.store(slot, word)
    file.close()
    file = opened()
    file.restore({3: 6, 4: 9})
    assert [file.load(slot) for slot in (0, 3, 4, 19999)] == [0, 6, 9, 0]
    assert [file.take_slot() for _ in range(4)] == [0, 1, 2, 5]


def test_every_slot_taken_is_pool_full(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "SLOTS", 2)
    file = opened()
    file.restore({})
    file.take_slot()
    file.take_slot()
    with pytest.raises(PoolFull, match="limit of 2 slabs"):
        file.take_slot()
