"""One word a session in memory that its client maps read-only: the session's number while it lives, 0 from then on.

A client looks at its word beside the slab's generation: that tells a process which was stopped for too long, before it
has heard anything, that what it shares with others is not its own to write any more. What was past that look as it was
stopped still lands: 128 KiB at most of a write. Views and arrays do not look. Numbers of sessions are never used
twice in an arena, so that a word that is another session's by now tells the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from typing import Final

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import PermissionDenied

__all__ = ["SessionWords"]

WORD_BYTES: Final = 8


class SessionWords:
    """The *count* words at *start* in *words*. Not thread-safe.

    ``back(end)`` makes sure that the words before offset *end* can be stored to, and may raise ``PoolFull``;
    ``publish(offset)`` makes a word that was stored to visible to every host.
    """

    def __init__(
        self,
        words: MemoryMapping,
        start: int,
        count: int,
        *,
        back: Callable[[int], None] = lambda end: None,
        publish: Callable[[int], None] = lambda offset: None,
    ) -> None:
        self._words = words
        self._start = start
        self._count = count
        self._back = back
        self._publish = publish
        self._fresh = start
        self._free: list[int] = []

    def restore(self, found: Iterable[tuple[int, int]], known: Collection[int]) -> dict[int, int]:
        """Keep the words of the sessions *known*, and zero all others; return where those are that have one.

        *found* are the words that are not zero, by offset: in them is what the last server left.
        """
        kept: dict[int, int] = {}
        for offset, session_id in found:
            if session_id in known and session_id not in kept:
                kept[session_id] = offset
            else:
                self._store(offset, 0)
        taken = set(kept.values())
        self._fresh = max(taken, default=self._start - WORD_BYTES) + WORD_BYTES
        self._free = [offset for offset in range(self._start, self._fresh, WORD_BYTES) if offset not in taken]
        return kept

    def begin(self, session_id: int) -> int:
        """Let a session live; return the offset of its word.

        Raises:
            PermissionDenied: there are as many sessions as words.
            PoolFull: the arena has no page left for the word.
        """
        if self._free:
            offset = heapq.heappop(self._free)
        elif self._fresh < self._start + self._count * WORD_BYTES:
            self._back(self._fresh + WORD_BYTES)
            offset = self._fresh
            self._fresh += WORD_BYTES
        else:
            raise PermissionDenied(f"the arena has words for {self._count} sessions; end some", limit=self._count)
        self._store(offset, session_id)
        return offset

    def end(self, offset: int) -> None:
        """End the session whose word is at *offset*, if that is not 0: from now on no access of its client is good."""
        if not offset:
            return
        self._store(offset, 0)
        heapq.heappush(self._free, offset)

    def _store(self, offset: int, session_id: int) -> None:
        self._words.store(offset, session_id)
        self._publish(offset)
