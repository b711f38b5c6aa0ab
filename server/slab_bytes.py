"""The bytes of slabs as the server itself handles them, to copy and to sum up. In threads: never on the loop's own.

Files are read and written, not mapped: a client that has one open for writing may cut it short, and a load from a page
that is gone would end the server. A device cannot be cut short, nor be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from farpool.native import cache_lines
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.checksums import WORD, block_length, blocks_in, checksum
from farpool.protocol.errors import CorruptData
from farpool.server.arena import Arena

__all__ = ["Copier", "summer"]

STEP_BYTES: Final = 1 << 20
"""Bytes that are dealt with at a time: they stay in the processor's cache from the reading to the use."""


class Source(Protocol):
    """Memory that is read in steps, from one thread."""

    def piece(self, offset: int, nbytes: int) -> memoryview:
        """Return *nbytes* at *offset*, good until the next call."""
        ...

    def close(self) -> None: ...


class FileSource:
    """A slab's file."""

    def __init__(self, arena: Arena, memory_id: int, nbytes: int) -> None:
        self._buffer = memoryview(bytearray(min(nbytes, STEP_BYTES)))
        self._fd = arena.open_descriptor(memory_id, "r")

    def piece(self, offset: int, nbytes: int) -> memoryview:
        """Return *nbytes* at *offset*, good until the next call."""
        done = 0
        while done < nbytes:
            got = os.preadv(self._fd, [self._buffer[done:nbytes]], offset + done)
            if not got:
                raise CorruptData(f"the slab's file ends after {offset + done} bytes: somebody has cut it short")
            done += got
        return self._buffer[:nbytes]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class MappedSource:
    """A slab's extent of a device."""

    def __init__(self, mapping: MemoryMapping, *, incoherent: bool) -> None:
        self._mapping = mapping
        self._incoherent = incoherent

    def piece(self, offset: int, nbytes: int) -> memoryview:
        """Return *nbytes* at *offset*, as they are in the memory now."""
        if self._incoherent:
            cache_lines.drop_memory(self._mapping, offset, nbytes)
        with memoryview(self._mapping) as whole:
            return whole[offset : offset + nbytes]

    def close(self) -> None:
        """Unmap it."""
        self._mapping.close()


def _source(arena: Arena, memory_id: int, nbytes: int) -> Source:
    if arena.device is None:
        return FileSource(arena, memory_id, nbytes)
    return MappedSource(arena.map(memory_id, nbytes), incoherent=arena.incoherent)


def _steps(start: int, end: int) -> Iterator[tuple[int, int]]:
    for offset in range(start, end, STEP_BYTES):
        yield offset, min(STEP_BYTES, end - offset)


def summer(arena: Arena, memory_id: int, nbytes: int, block: int) -> Callable[[], bytes]:
    """Open a slab's memory, and return what computes its checksums, for a thread to call once."""
    source = _source(arena, memory_id, nbytes)

    def words() -> bytes:
        with contextlib.closing(source):
            return b"".join(_block_sums(source, nbytes, block))

    return words


def _block_sums(source: Source, nbytes: int, block: int) -> Iterator[bytes]:
    for index in range(blocks_in(nbytes, block)):
        start = index * block
        word = 0
        for offset, length in _steps(start, start + block_length(index, nbytes, block)):
            with source.piece(offset, length) as piece:
                word = checksum(piece, word)
        yield WORD.pack(word)


class Copier:
    """A slab's memory, open from now on, and that of *target_id*, which need not exist yet: copied once, or closed."""

    def __init__(self, arena: Arena, source_id: int, target_id: int, nbytes: int) -> None:
        self._arena = arena
        self._source = _source(arena, source_id, nbytes)
        self._target_id = target_id
        self._nbytes = nbytes

    def copy(self) -> None:
        """Copy every byte, in a thread, and close the memory."""
        arena, target_id, nbytes = self._arena, self._target_id, self._nbytes
        with contextlib.closing(self._source) as source:
            if arena.device is None:
                _copy_to_file(source, arena.open_descriptor(target_id, "rw"), nbytes)
            else:
                _copy_to_device(source, arena.map(target_id, nbytes), nbytes, incoherent=arena.incoherent)

    def close(self) -> None:
        """Close the memory: there will be no copy."""
        self._source.close()


def _copy_to_file(source: Source, fd: int, nbytes: int) -> None:
    try:
        for offset, length in _steps(0, nbytes):
            with source.piece(offset, length) as piece:
                done = 0
                while done < length:
                    done += os.pwritev(fd, [piece[done:]], offset + done)
    finally:
        os.close(fd)


def _copy_to_device(source: Source, mapping: MemoryMapping, nbytes: int, *, incoherent: bool) -> None:
    with mapping:
        for offset, length in _steps(0, nbytes):
            with source.piece(offset, length) as piece:
                ctypes.memmove(mapping.address + offset, _address_of(piece), length)  # lets go of the GIL
        if incoherent:
            cache_lines.flush_memory(mapping, 0, nbytes)


def _address_of(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
