"""What the clients of a round have done so far, as words of memory that the run looks at without asking them."""

from __future__ import annotations

import time
from enum import IntEnum
from mmap import mmap
from pathlib import Path

from tests.chaos.plan import ROLES

__all__ = ["Board", "Word"]


class Word(IntEnum):
    """Words of one client. Stores of one are whole."""

    ANSWERED = 0
    """Turns that ended with an answer."""
    LAST = 1
    """When the last of them did so; ns of CLOCK_MONOTONIC, which all processes share."""
    BUSY = 2
    """Not 0 while it holds its slab for itself alone, or is in the middle of a large copy."""
    DONE = 3
    """Times that it was busy and came to the end of it."""
    SLAB = 4
    """A slab of its session: that it copies to, if it does."""


ACKNOWLEDGED = len(ROLES) * len(Word)
"""Index of the last version whose commit has returned."""


class Board:
    """The words, in a file that is mapped by all."""

    def __init__(self, path: Path) -> None:
        path.touch()
        with path.open("r+b") as file:
            file.truncate(8 * (ACKNOWLEDGED + 1))
            self._words = memoryview(mmap(file.fileno(), 0)).cast("Q")

    def clear(self) -> None:
        """Forget everything: a new round begins."""
        for index in range(len(self._words)):
            self._words[index] = 0

    def get(self, client: int, word: Word) -> int:
        """Return a word of a client."""
        return self._words[client * len(Word) + word]

    def put(self, client: int, word: Word, value: int) -> None:
        """Set a word of a client."""
        self._words[client * len(Word) + word] = value

    def answer(self, client: int) -> None:
        """Note that a client was answered now."""
        self.put(client, Word.LAST, time.monotonic_ns())
        self.put(client, Word.ANSWERED, self.get(client, Word.ANSWERED) + 1)

    def answered_at(self, client: int) -> float:
        """Return when the client was last answered, seconds of ``time.monotonic``."""
        return self.get(client, Word.LAST) / 1e9

    @property
    def acknowledged(self) -> int:
        """The last version whose commit has returned."""
        return self._words[ACKNOWLEDGED]

    @acknowledged.setter
    def acknowledged(self, version: int) -> None:
        self._words[ACKNOWLEDGED] = version
