"""What a device of a pool begins with: whose it is, and where its generation words are.

The server alone writes it. A client that opened a device by itself knows by the arena's number that it has the right
one, and by the incarnation, which each start of the server draws anew, that it sees this memory and no copy of it.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, replace
from typing import Final

from farpool.native import cache_lines
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import ProtocolError

__all__ = [
    "PAGE_BYTES",
    "SESSION_WORDS",
    "WORD_BYTES",
    "Superblock",
    "header_bytes",
    "read_superblock",
    "words_end",
    "write_superblock",
]

MAGIC: Final = b"farpool\x1a"
VERSION: Final = 2
"""Of the layout: what comes after the superblock, too. The words of sessions came with 2."""
PAGE_BYTES: Final = 4096
"""The superblock has a page for itself; the generation words come after it, and then the words of sessions."""
WORD_BYTES: Final = 8
SESSION_WORDS: Final = 1 << 14
"""Most sessions that a server has at a time on a device."""

_FIELDS = struct.Struct("<8sII16s16sQQQ")
_SUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Superblock:
    """The first page of a device."""

    arena: bytes
    """16 random bytes that name the arena for as long as it lives."""
    nbytes: int
    """Size of the device that it was made for."""
    align: int
    words: int
    """How many generation words follow the page."""
    claimed: bool = True
    """False after ``farpool format``: whoever serves it first may have it."""
    incarnation: bytes = bytes(16)
    """16 random bytes of the server's latest start."""

    def encode(self) -> bytes:
        """Return the page."""
        fields = _FIELDS.pack(
            MAGIC, VERSION, self.claimed, self.arena, self.incarnation, self.nbytes, self.align, self.words
        )
        return (fields + _SUM.pack(zlib.crc32(fields))).ljust(PAGE_BYTES, b"\0")

    @classmethod
    def decode(cls, page: bytes) -> Superblock | None:
        """Return what a page holds, None for a blank one; raise :class:`ProtocolError` for anything else."""
        if not any(page):
            return None
        magic, version, claimed, arena, incarnation, nbytes, align, words = _FIELDS.unpack_from(page)
        if magic != MAGIC:
            raise ProtocolError("it holds something else than an arena of farpool")
        if (zlib.crc32(page[: _FIELDS.size]),) != _SUM.unpack_from(page, _FIELDS.size):
            raise ProtocolError("its superblock is damaged (the checksum is wrong)")
        if version < VERSION:
            raise ProtocolError(
                f"it was formatted by an earlier version of farpool (its layout is {version}, this one's {VERSION}), "
                "and its slabs cannot be carried over: serve it with that version to read them, or begin anew"
            )
        if version > VERSION:
            raise ProtocolError(
                f"it was formatted by a later version of farpool (its layout is {version}, this one's {VERSION}); "
                "install the release that the pool's server has"
            )
        return cls(arena, nbytes, align, words, bool(claimed), incarnation)

    def begun(self) -> Superblock:
        """Return the superblock of a new start of the server."""
        return replace(self, claimed=True, incarnation=os.urandom(16))


def words_end(words: int) -> int:
    """Return where the words end, those of sessions too: what a client maps of a device's header."""
    return PAGE_BYTES + (words + SESSION_WORDS) * WORD_BYTES


def header_bytes(words: int, align: int) -> int:
    """Return the bytes before the first extent: the page and the words, in whole units of the alignment."""
    return -(-words_end(words) // align) * align


def read_superblock(header: MemoryMapping, *, incoherent: bool) -> Superblock | None:
    """Return what the mapped start of a device holds; see :meth:`Superblock.decode`."""
    if incoherent:
        cache_lines.drop_memory(header, 0, PAGE_BYTES)
    with memoryview(header) as view:
        return Superblock.decode(bytes(view[:PAGE_BYTES]))


def write_superblock(header: MemoryMapping, superblock: Superblock, *, incoherent: bool) -> None:
    """Write the first page of a device."""
    with memoryview(header) as view:
        view[:PAGE_BYTES] = superblock.encode()
    if incoherent:
        cache_lines.flush_memory(header, 0, PAGE_BYTES)
