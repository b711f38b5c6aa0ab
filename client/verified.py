"""How bytes are read so that each can be verified: in whole blocks, of which the caller gets his part. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import index, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from farpool.protocol.checksums import WORD, block_length, checksum
from farpool.protocol.errors import CorruptData

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Checksums", "Piece", "as_target", "in_order", "plan", "verify"]

SPARE_BYTES: Final = 4 << 20
"""Bytes beside the caller's own that one batch reads at most, for the blocks that it wants in part."""


class Checksums(NamedTuple):
    """What was committed, as the server told: the crc32c of each ``block`` bytes of a slab."""

    block: int
    words: bytes
    nbytes: int
    label: str


@dataclass(slots=True)
class Piece:
    """One run of whole blocks to read, into the caller's buffer or into one of ours that parts are copied from."""

    offset: int
    target: memoryview
    copies: list[tuple[int, memoryview]] = field(default_factory=list[tuple[int, memoryview]])

    def present(self, checksums: Checksums) -> None:
        """Give the caller what was read; raise ``CorruptData`` if it is not what was committed."""
        verify(self.target, self.offset, checksums)
        for start, part in self.copies:
            part[:] = self.target[start : start + part.nbytes]


def verify(blocks: memoryview, offset: int, checksums: Checksums) -> None:
    """Raise ``CorruptData`` unless the whole blocks from *offset* on have the checksums that were committed."""
    block = checksums.block
    for start in range(0, blocks.nbytes, block):
        number = (offset + start) // block
        (committed,) = WORD.unpack_from(checksums.words, number * WORD.size)
        found = checksum(blocks[start : start + block])
        if found != committed:
            raise CorruptData(
                f"slab {checksums.label} is damaged: its {block} bytes from {number * block} on have crc32c "
                f"{found:08x}, not {committed:08x} as they were committed; commit it anew",
                offset=number * block,
                nbytes=block_length(number, checksums.nbytes, block),
            )


def as_target(buffer: Buffer, offset: object, nbytes: int) -> tuple[int, memoryview] | None:
    """Return where a buffer is to be filled from, as bytes; None leaves the error, or nothing to do, to the region."""
    try:
        start, view = index(offset), memoryview(buffer).cast("B")  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return None
    if view.readonly or not view.nbytes or start < 0 or start > nbytes - view.nbytes:
        return None
    return start, view


def in_order(parts: Iterable[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
    """Return parts as they lie in the slab, so that each block that many of them are in is read and verified once."""
    return sorted(parts, key=itemgetter(0))


def plan(parts: Iterable[tuple[int, memoryview]], checksums: Checksums) -> Iterator[list[Piece]]:
    """Cut *parts*, which are inside of the slab, into batches of pieces to read and to present one after the other."""
    batch: list[Piece] = []
    spare: dict[int, Piece] = {}
    room = SPARE_BYTES
    for offset, view in parts:
        for start, run, whole in _runs(offset, view.nbytes, checksums):
            part = view[start - offset : start - offset + run]
            if whole:
                batch.append(Piece(start, part))
                continue
            number = start // checksums.block
            piece = spare.get(number)
            if piece is None:
                length = block_length(number, checksums.nbytes, checksums.block)
                if batch and room < length:
                    yield batch
                    batch, spare, room = [], {}, SPARE_BYTES
                piece = spare[number] = Piece(number * checksums.block, memoryview(bytearray(length)))
                batch.append(piece)
                room -= length
            piece.copies.append((start - piece.offset, part))
    if batch:
        yield batch


def _runs(offset: int, nbytes: int, checksums: Checksums) -> Iterator[tuple[int, int, bool]]:
    """Cut a range into (start, length, whether it is whole blocks): at most a part, whole blocks and a part again."""
    block, end = checksums.block, offset + nbytes
    first = -(-offset // block) * block
    last = end if end == checksums.nbytes else end // block * block
    if first >= last:  # no block is covered whole
        while offset < end:
            stop = min(end, (offset // block + 1) * block)
            yield offset, stop - offset, False
            offset = stop
        return
    if offset < first:
        yield offset, first - offset, False
    yield first, last - first, True
    if last < end:
        yield last, end - last, False
