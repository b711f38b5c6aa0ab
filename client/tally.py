"""What a writer knows of the checksums of its draft, to compare with what the server finds there at the commit."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farpool.client.attachment import Attachment
from farpool.native.equal_parts import list_parts
from farpool.protocol.checksums import WORD, block_length, block_of, checksum, digest_of, pack_known
from farpool.transports.contract import Region
from farpool.transports.gathering import gathering_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["TalliedRegion", "Tally"]

UNKNOWN = -1


class Tally:
    """The checksum of each block that was written whole, from its first byte to its last in order. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._block = block_of(nbytes)
        self._written: dict[int, tuple[int, int]] = {}  # by block: bytes from its begin on, and their crc32c
        self._unknown = False
        self._lock = threading.Lock()

    def write(self, buffer: Buffer, offset: int) -> None:
        """Note what was written at *offset*."""
        with self._lock, memoryview(buffer) as view, view.cast("B") as data:
            if self._unknown:
                return
            start = 0
            while start < data.nbytes:
                number, begin = divmod(offset + start, self._block)
                stop = min(data.nbytes, start + self._block - begin)
                end, word = self._written.get(number, (0, 0)) if begin else (0, 0)
                if end == begin:
                    self._written[number] = end + stop - start, checksum(data[start:stop], word)
                else:
                    self._written[number] = UNKNOWN, 0
                start = stop

    def touch(self, offset: int) -> None:
        """Note that a word was changed."""
        with self._lock:
            self._written[offset // self._block] = UNKNOWN, 0

    @contextmanager
    def noting(self) -> Generator[None]:
        """Give up if an operation fails: what it has written is unknown."""
        try:
            yield
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Note that anything may be written from now on."""
        with self._lock:
            self._unknown = True
            self._written.clear()

    def summary(self) -> tuple[bytes, int]:
        """Return the blocks that are known, as bits, and the digest of their checksums."""
        with self._lock:
            known = sorted(
                number
                for number, (end, _) in self._written.items()
                if end == block_length(number, self._nbytes, self._block)
            )
            words = b"".join(WORD.pack(self._written[number][1]) for number in known)
        return pack_known(known), digest_of(words, range(len(known)))


class TalliedRegion:
    """A draft's region with its writes noted; what it does not have is the region's own."""

    def __init__(self, attachment: Attachment, tally: Tally) -> None:
        self._region: Region = attachment.region
        self._label = attachment.ticket.label
        self._tally = tally

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the draft and return the bytes written."""
        with self._tally.noting():
            written = self._region.write(buffer, offset, timeout)
            self._tally.write(buffer, offset)
        return written

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch and return the bytes written."""
        listed = list(parts)
        with self._tally.noting():
            written = self._region.writev(listed, timeout)
            for offset, buffer in listed:
                self._tally.write(buffer, offset)
        return written

    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        region, label = self._region, self._label
        with self._tally.noting():
            written = gathering_of(region, label).scatter(offsets, nbytes, source, timeout)
            for offset, part in list_parts(offsets, nbytes, source, region.nbytes, label, inward=False):
                self._tally.write(part, offset)
        return written

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*."""
        with self._tally.noting():
            self._region.store(offset, value, timeout)
            self._tally.touch(offset)

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* to the aligned word at *offset*; return the old value."""
        with self._tally.noting():
            old = self._region.fetch_add(offset, value, timeout)
            self._tally.touch(offset)
        return old

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*; return the old value."""
        with self._tally.noting():
            old = self._region.compare_swap(offset, expected, new, timeout)
            self._tally.touch(offset)
        return old

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Return the draft's own memory, to be written to directly."""
        self._tally.give_up()
        return self._region.view(offset, nbytes)
