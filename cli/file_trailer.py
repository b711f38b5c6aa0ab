"""How a slab says that it holds a file: 40 bytes after the file's own, at the slab's very end. No I/O here.

Little-endian: magic (8 bytes), version (u32), state (u32), the file's bytes (u64), their CRC-32C (u32), four
zero bytes, then the CRC-32C of the trailer so far (u32) and four zero bytes. ``put`` writes it first as
*incomplete*, and as *complete* only after the last byte of the file, so that half a file is never taken for a
whole one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from farpool.protocol.errors import CorruptData

__all__ = ["TRAILER_NBYTES", "FileTrailer"]

_MAGIC = b"FARPFILE"
_VERSION = 1
_BODY = struct.Struct("<8sIIQI4x")
_SEAL = struct.Struct("<I4x")
TRAILER_NBYTES = _BODY.size + _SEAL.size


@dataclass(frozen=True, slots=True)
class FileTrailer:
    """What ``get`` must know of a file that ``put`` stored."""

    nbytes: int
    checksum: int = 0
    complete: bool = False

    def pack(self) -> bytes:
        """Return the trailer's bytes."""
        body = _BODY.pack(_MAGIC, _VERSION, int(self.complete), self.nbytes, self.checksum)
        return body + _SEAL.pack(crc32c(body))

    @classmethod
    def unpack(cls, tail: bytes, slab_nbytes: int) -> FileTrailer | None:
        """Return the trailer that *tail*, a slab's last bytes, holds; None if ``put`` did not make the slab.

        Raises:
            CorruptData: it begins as a trailer and is damaged, or of a version that we do not know.
        """
        if len(tail) != TRAILER_NBYTES or not tail.startswith(_MAGIC):
            return None
        body, seal = tail[: _BODY.size], tail[_BODY.size :]
        _, version, state, nbytes, checksum = _BODY.unpack(body)
        if version != _VERSION:
            raise CorruptData(f"the slab's file trailer has version {version}; this Farpool knows {_VERSION}")
        if seal != _SEAL.pack(crc32c(body)) or nbytes != slab_nbytes - TRAILER_NBYTES:
            raise CorruptData("the slab's file trailer is damaged: its own checksum or the file's size is wrong")
        return cls(nbytes, checksum, complete=state == 1)
