"""The arena's generation file: one 8-byte word a slot, the truth about which slab lives there, and as many marks.

Behind them are the words of sessions. The server alone writes it; clients map it read-only and look at their words.
The file never shrinks and is never replaced, since clients keep it mapped over a restart of the server.
"""

from __future__ import annotations

import errno
import heapq
import os
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Final, Protocol

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import PoolFull
from farpool.server.session_words import SessionWords

__all__ = ["NUMBERS_END", "SLOTS", "GenerationFile", "Generations", "largest_number"]

SLOTS: Final = 1 << 20
"""Most slabs that one arena holds at a time."""

WORD_BYTES: Final = 8
STEP_BYTES: Final = 64 << 10
"""The file is sparse; this much of it is backed with pages at a time, before a word in it is touched or told of."""
SESSIONS_STEP_BYTES: Final = 16 << 10
"""So it is where sessions have their words: more than the sessions that a server has by default."""


NUMBERS_END: Final = 1 << 62
"""No number that a server has given is so large."""


def largest_number(words: Iterable[int]) -> int:
    """Return the largest of *words* that a server may have written, 0 without any."""
    return max((word for word in words if word < NUMBERS_END), default=0)


class Generations(Protocol):
    """The generation words of an arena, and the slots that are free. Not thread-safe."""

    @property
    def path(self) -> str:
        """File that clients map to look at words."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the file that hold words."""
        ...

    def largest(self) -> tuple[int, int]:
        """Return the largest generation and the largest number of a session that words hold, 0 where there is none.

        What is ``NUMBERS_END`` or more is neither: a device's memory may have held anything before.
        """
        ...

    def restore(self, live: Mapping[int, int]) -> None:
        """Make every word what *live* (slot to generation) says, and any other zero."""
        ...

    def take_slot(self) -> int:
        """Return a free slot; raise ``PoolFull``."""
        ...

    def release_slot(self, slot: int) -> None:
        """Give a slot back; its word must be zero."""
        ...

    def store(self, slot: int, generation: int) -> None:
        """Set the word of *slot*; 0 says that no slab lives there."""
        ...

    def load(self, slot: int) -> int:
        """Return the word of *slot*."""
        ...

    @property
    def watched_offset(self) -> int:
        """Where in the file the words of :meth:`watch` begin, one a slot; 0 where there are none."""
        ...

    def watch(self, slot: int, mark: int) -> None:
        """Show clients which word of the slab somebody waits for: its offset + 1; 0 is none, all ones are several."""
        ...

    @property
    def sessions(self) -> SessionWords:
        """The words that tell clients which sessions live, in the same file."""
        ...

    def restore_sessions(self, known: Collection[int]) -> dict[int, int]:
        """Keep the words of the sessions *known*, and zero all others; return where those are that have one."""
        ...

    def keep_session_words(self, count: int) -> bool:
        """Have the memory for the words of *count* sessions from now on; return whether there was room for it."""
        ...

    def close(self) -> None:
        """Let go of the words, which stay. May be called twice."""
        ...


class GenerationFile:
    """The mapped generation words and the slots that are free. Not thread-safe."""

    def __init__(self, path: str, dir_fd: int) -> None:
        self.path = path
        self.watched_offset = self._marks_offset = SLOTS * WORD_BYTES
        self._sessions_offset = 2 * SLOTS * WORD_BYTES
        self.nbytes = 3 * SLOTS * WORD_BYTES
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(os.path.basename(path), flags, 0o600, dir_fd=dir_fd)  # noqa: PTH119  one string, hot import
        try:
            if os.fstat(self._fd).st_size < self.nbytes:
                os.ftruncate(self._fd, self.nbytes)
            self._words = MemoryMapping(self._fd, self.nbytes, writable=True)
        except BaseException:
            os.close(self._fd)
            raise
        self.sessions = SessionWords(self._words, self._sessions_offset, SLOTS, back=self._back_sessions)
        self._backed = 0
        self._sessions_backed = self._sessions_offset
        self._fresh = 0
        self._free: list[int] = []

    def largest(self) -> tuple[int, int]:
        """Return the largest generation and the largest number of a session that words hold."""
        parts = self._stored(0, self._marks_offset), self._stored(self._sessions_offset, self.nbytes)
        generation, number = (largest_number(word for _, word in part) for part in parts)
        return generation, number

    def restore(self, live: Mapping[int, int]) -> None:
        """Make every word what *live* (slot to generation) says, and any other zero."""
        for offset, _ in self._stored(0, self._sessions_offset):
            if offset // WORD_BYTES not in live:
                self._words.store(offset, 0)
        self._fresh = max(live, default=-1) + 1
        try:
            self._back(self._fresh)
        except PoolFull:  # an earlier version left holes where marks are: who waits looks by itself
            self.watched_offset = 0
            self._back(self._fresh)
        for slot, generation in live.items():
            self._words.store(slot * WORD_BYTES, generation)
        self._free = [slot for slot in range(self._fresh) if slot not in live]

    def take_slot(self) -> int:
        """Return a free slot whose word can be written.

        Raises:
            PoolFull: every slot is taken, or the arena has no page left for the file.
        """
        if self._free:
            return heapq.heappop(self._free)
        if self._fresh >= SLOTS:
            raise PoolFull(f"the arena holds its limit of {SLOTS} slabs; free some", limit=SLOTS)
        self._back(self._fresh + 1)
        self._fresh += 1
        return self._fresh - 1

    def release_slot(self, slot: int) -> None:
        """Give a slot back; its word must be zero."""
        heapq.heappush(self._free, slot)

    def store(self, slot: int, generation: int) -> None:
        """Set the word of *slot*; 0 says that no slab lives there."""
        self._words.store(slot * WORD_BYTES, generation)

    def load(self, slot: int) -> int:
        """Return the word of *slot*."""
        return self._words.load(slot * WORD_BYTES)

    def watch(self, slot: int, mark: int) -> None:
        """Show clients which word of the slab somebody waits for; without marks who waits looks by itself."""
        if self.watched_offset:
            self._words.store(self.watched_offset + slot * WORD_BYTES, mark)

    def restore_sessions(self, known: Collection[int]) -> dict[int, int]:
        """Keep the words of the sessions *known*, and zero all others; return where those are that have one."""
        kept = self.sessions.restore(self._stored(self._sessions_offset, self.nbytes), known)
        self.keep_session_words(1)  # while the start has room to itself: sessions come when there is none
        return kept

    def keep_session_words(self, count: int) -> bool:
        """Have the memory for the words of *count* sessions from now on; return whether there was room for it."""
        try:
            self._back_sessions(self._sessions_offset + min(count, SLOTS) * WORD_BYTES)
        except PoolFull:
            return False
        return True

    def close(self) -> None:
        """Unmap the words; the file stays. May be called twice."""
        if self._fd >= 0:
            self._words.close()
            os.close(self._fd)
            self._fd = -1

    def _back(self, slots: int) -> None:
        end = -(-slots * WORD_BYTES // STEP_BYTES) * STEP_BYTES
        if end > self._backed:
            self._reserve(self._backed, end)
            if self.watched_offset:  # clients look at the mark with the word
                self._reserve(self.watched_offset + self._backed, self.watched_offset + end)
            self._backed = end

    def _back_sessions(self, end: int) -> None:
        end = -(-end // SESSIONS_STEP_BYTES) * SESSIONS_STEP_BYTES
        if end > self._sessions_backed:
            self._reserve(self._sessions_backed, end)
            self._sessions_backed = end

    def _reserve(self, start: int, end: int) -> None:
        # A store into a hole of a full tmpfs is a SIGBUS, and so is a client's load: have the pages first.
        try:
            os.posix_fallocate(self._fd, start, end - start)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise PoolFull(
                "the arena's file system has no room for one more generation word; free slabs, or give it more memory",
                file_system_free=0,
            ) from None

    def _stored(self, start: int, stop: int) -> Generator[tuple[int, int]]:
        """Find the words in a part of the file that are not zero, by their offsets."""
        while start < stop:
            try:
                start = os.lseek(self._fd, start, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                raise
            end = min(os.lseek(self._fd, start, os.SEEK_HOLE), stop)
            start = start // WORD_BYTES * WORD_BYTES
            for offset in range(start, end, STEP_BYTES):
                words = memoryview(os.pread(self._fd, min(STEP_BYTES, end - offset), offset)).cast("Q")
                for index, word in enumerate(words):
                    if word:
                        yield offset + index * WORD_BYTES, word
            start = end
