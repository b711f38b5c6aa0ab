"""Generation words on the device itself, where other hosts can look at them too.

They follow the superblock, and the words of sessions follow them. A device is cut into fewer extents than it has
generation words, so that no slab lacks one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from typing import Final

from farpool.native import cache_lines
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import PoolFull
from farpool.server.generations import largest_number
from farpool.server.session_words import SessionWords
from farpool.transports.cxl.superblock import PAGE_BYTES, SESSION_WORDS, WORD_BYTES

__all__ = ["DeviceGenerations"]

FIRST_SLOT: Final = PAGE_BYTES // WORD_BYTES
"""Slots count words from the device's first byte on, where clients begin their mapping; the superblock is before."""


class DeviceGenerations:
    """The mapped words and the slots that are free. Not thread-safe."""

    watched_offset = 0

    def __init__(self, header: MemoryMapping, words: int, path: str, *, incoherent: bool) -> None:
        self.path = path
        self.nbytes = (FIRST_SLOT + words) * WORD_BYTES
        self._header = header
        self._incoherent = incoherent
        self._words = words
        self._sessions_offset = self.nbytes
        self.sessions = SessionWords(header, self._sessions_offset, SESSION_WORDS, publish=self._publish)
        self._free = list(range(FIRST_SLOT, FIRST_SLOT + words))

    def largest(self) -> tuple[int, int]:
        """Return the largest generation and the largest number of a session that words hold."""
        end = self._sessions_offset + SESSION_WORDS * WORD_BYTES
        with memoryview(self._header) as view, view[:end].cast("Q") as words:
            first = self._sessions_offset // WORD_BYTES
            return largest_number(words[FIRST_SLOT:first]), largest_number(words[first:])

    def restore(self, live: Mapping[int, int]) -> None:
        """Make every word what *live* (slot to generation) says, and any other zero."""
        for slot in range(FIRST_SLOT, FIRST_SLOT + self._words):
            if self.load(slot) != live.get(slot, 0):
                self.store(slot, live.get(slot, 0))
        self._free = [slot for slot in range(FIRST_SLOT, FIRST_SLOT + self._words) if slot not in live]

    def take_slot(self) -> int:
        """Return a free slot; raise ``PoolFull`` if the device is cut into as many slabs as it can be."""
        if not self._free:
            raise PoolFull(f"the device holds its limit of {self._words} slabs; free some", limit=self._words)
        return heapq.heappop(self._free)

    def release_slot(self, slot: int) -> None:
        """Give a slot back; its word must be zero."""
        heapq.heappush(self._free, slot)

    def store(self, slot: int, generation: int) -> None:
        """Set the word of *slot* for every host; 0 says that no slab lives there."""
        self._header.store(slot * WORD_BYTES, generation)
        self._publish(slot * WORD_BYTES)

    def load(self, slot: int) -> int:
        """Return the word of *slot*, which this server alone writes."""
        return self._header.load(slot * WORD_BYTES)

    def watch(self, slot: int, mark: int) -> None:
        """Do nothing: waiters may be on another host, whom no store wakes."""

    def restore_sessions(self, known: Collection[int]) -> dict[int, int]:
        """Keep the words of the sessions *known*, and zero all others; return where those are that have one."""
        offsets = range(self._sessions_offset, self._sessions_offset + SESSION_WORDS * WORD_BYTES, WORD_BYTES)
        found = [(offset, word) for offset in offsets if (word := self._header.load(offset))]
        return self.sessions.restore(found, known)

    def keep_session_words(self, count: int) -> bool:
        """Return True: the header has the words of as many sessions as a device can have."""
        return True

    def _publish(self, offset: int) -> None:
        if self._incoherent:
            cache_lines.flush_memory(self._header, offset, WORD_BYTES)

    def close(self) -> None:
        """Do nothing: the arena owns the mapping."""
