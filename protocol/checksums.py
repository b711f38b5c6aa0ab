"""Checksums of committed bytes: one crc32c for each block of a slab. Pure functions.

A row of checksums travels and is kept as little-endian words of four bytes, one a block in the order of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "LEAST_BLOCK",
    "MOST_BLOCKS",
    "WORD",
    "block_length",
    "block_of",
    "blocks_in",
    "checksum",
    "digest_of",
    "pack_known",
    "unpack_known",
]

LEAST_BLOCK: Final = 64 << 10
"""Bytes of a block of a slab that is not very long: what reading a few bytes costs is bounded by it."""

MOST_BLOCKS: Final = 4096
"""Blocks of a slab at most: its checksums are 16 KiB, and travel with every attach."""

WORD: Final = Struct("<I")


def block_of(nbytes: int) -> int:
    """Return the bytes of one block of a slab of *nbytes*: a power of two."""
    return max(LEAST_BLOCK, 1 << (-(-nbytes // MOST_BLOCKS) - 1).bit_length())


def blocks_in(nbytes: int, block: int) -> int:
    """Return how many blocks a slab of *nbytes* has; the last one may be short."""
    return -(-nbytes // block)


def block_length(index: int, nbytes: int, block: int) -> int:
    """Return the bytes of the block of that *index*."""
    return min(block, nbytes - index * block)


def checksum(buffer: Buffer, before: int = 0) -> int:
    """Return the crc32c of *buffer*, or of what has *before* followed by it."""
    return crc32c(buffer, before)


def digest_of(checksums: bytes, known: Iterable[int]) -> int:
    """Return the crc32c of the checksums of the *known* blocks, by which two sides compare what they know."""
    digest = 0
    for index in known:
        digest = crc32c(checksums[index * WORD.size : (index + 1) * WORD.size], digest)
    return digest


def pack_known(known: Iterable[int]) -> bytes:
    """Return a set of blocks as bits, the first block's the lowest of the first byte."""
    bits = 0
    for index in known:
        bits |= 1 << index
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def unpack_known(bits: bytes, blocks: int) -> Sequence[int]:
    """Return the blocks whose bits are set, in their order; bits from *blocks* on are ignored."""
    number = int.from_bytes(bits, "little")
    return [index for index in range(blocks) if number >> index & 1]
