"""The limits as contenders: what each operation is compared with, for each kind of transport."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from farpool.native import limits
from farpool.perf.raw_socket import RawSocket
from farpool.perf.rounds import Contender, in_python
from farpool.perf.walk import Bytes, Int64Array

if TYPE_CHECKING:
    from farpool.native.verbs_limits import BareVerbs

__all__ = [
    "Limit",
    "Limits",
    "MappingLimits",
    "NoLimits",
    "ReadLimits",
    "SocketLimits",
    "VerbsLimits",
    "kernel_alone",
    "numpy_copy",
]

SMALL_MESSAGE: Final = 64
"""Bytes of a raw ping-pong's request for a read, and of its reply to a write."""
STREAM_NBYTES: Final = 8 << 20
"""From so many bytes on the limit is a stream: the turn-around between two requests no longer counts."""
STREAM_AHEAD: Final = 4
WORD_NBYTES: Final = 8
MEMORY_FILES: Final = Path("/dev/shm")  # noqa: S108  the memory file system itself


class Limit(NamedTuple):
    """One limit; ``run`` is None where there is nothing to run."""

    run: Contender | None
    name: str


class ReadLimits(Protocol):
    """The limits of reads alone."""

    def read(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return the limit of reading at each offset in turn into *buffer*."""
        ...


class Limits(ReadLimits, Protocol):
    """The limits of one transport. *buffer* holds whole parts of *nbytes*; the limit uses the same."""

    def write(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return the limit of writing *buffer* at each offset in turn."""
        ...

    def add(self, offsets: Int64Array) -> Limit:
        """Return the limit of an atomic addition at each offset in turn."""
        ...

    def load(self, offsets: Int64Array) -> Limit:
        """Return the limit of loading the word at each offset in turn."""
        ...


class NoLimits:
    """For a transport whose limit cannot run here."""

    def read(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return no limit."""
        return Limit(None, "")

    write = read

    def add(self, offsets: Int64Array) -> Limit:
        """Return no limit."""
        return Limit(None, "")

    load = add


class MappingLimits:
    """For a transport whose slab is mapped here: the processor's own copies and atomics on that mapping."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def read(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return memcpy out of the mapping."""
        return self._copy(limits.read_memory, offsets, buffer, nbytes)

    def write(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return memcpy into the mapping."""
        return self._copy(limits.write_memory, offsets, buffer, nbytes)

    def _copy(self, loop: Callable[..., int], offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        parts = len(buffer) // nbytes

        def contend(calls: int, samples: Int64Array, seconds: float) -> int:
            return loop(self._memory, offsets, buffer, nbytes, calls * parts, samples, seconds)

        return Limit(contend, "memcpy")

    def add(self, offsets: Int64Array) -> Limit:
        """Return the processor's atomic addition."""
        return self._words(limits.add_words, offsets)

    def load(self, offsets: Int64Array) -> Limit:
        """Return the processor's load."""
        return self._words(limits.load_words, offsets)

    def _words(self, loop: Callable[..., int], offsets: Int64Array) -> Limit:
        def contend(calls: int, samples: Int64Array, seconds: float) -> int:
            return loop(self._memory, offsets, calls, samples, seconds)

        return Limit(contend, "native word")


class SocketLimits:
    """For a transport over a TCP socket: the same bytes over a raw one, between two loops in C."""

    def __init__(self, raw: RawSocket) -> None:
        self._raw = raw

    def read(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return a small request with a reply of the buffer's size, pipelined from 8 MiB on."""
        return self._trip(SMALL_MESSAGE, len(buffer))

    def write(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return a request of the buffer's size with a small reply, pipelined from 8 MiB on."""
        return self._trip(len(buffer), SMALL_MESSAGE)

    def _trip(self, request_nbytes: int, reply_nbytes: int) -> Limit:
        if max(request_nbytes, reply_nbytes) >= STREAM_NBYTES:
            contender = self._raw.contender(request_nbytes, reply_nbytes, STREAM_AHEAD)
            return Limit(contender, "raw tcp stream")
        return Limit(self._raw.contender(request_nbytes, reply_nbytes), "raw tcp ping-pong")

    def add(self, offsets: Int64Array) -> Limit:
        """Return a round trip of two small messages."""
        return self._trip(SMALL_MESSAGE, SMALL_MESSAGE)

    load = add


class VerbsLimits:
    """For a transport over an RDMA device: the same operations by bare verbs, looped back within the device."""

    def __init__(self, bare: BareVerbs) -> None:
        self._bare = bare

    def read(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return one chain of reads, posted and polled for."""
        return self._move(True, offsets, buffer, nbytes)

    def write(self, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        """Return one chain of writes, posted and polled for."""
        return self._move(False, offsets, buffer, nbytes)

    def _move(self, inward: bool, offsets: Int64Array, buffer: Bytes, nbytes: int) -> Limit:
        parts = len(buffer) // nbytes

        def contend(calls: int, samples: Int64Array, seconds: float) -> int:
            return self._bare.move(inward, offsets, nbytes, parts, calls, samples, seconds)

        return Limit(contend, "bare verbs")

    def add(self, offsets: Int64Array) -> Limit:
        """Return the device's atomic addition."""

        def contend(calls: int, samples: Int64Array, seconds: float) -> int:
            return self._bare.add(offsets, calls, samples, seconds)

        return Limit(contend, "bare verbs")

    def load(self, offsets: Int64Array) -> Limit:
        """Return a read of one word."""
        return self._move(True, offsets, bytearray(WORD_NBYTES), WORD_NBYTES)


def numpy_copy(memory: memoryview, offsets: Int64Array, buffer: Bytes) -> Limit:
    """Return numpy's own slice copy, in the same Python loop as ours."""
    source, destination = np.frombuffer(memory, np.uint8), np.frombuffer(buffer, np.uint8)
    nbytes = len(buffer)

    def run(block: Sequence[int]) -> None:
        for offset in block:
            destination[:] = source[offset : offset + nbytes]

    return Limit(in_python(run, offsets.tolist()), "numpy slice copy")


def kernel_alone(nbytes: int) -> Limit:
    """Return the kernel's share of an allocation: make a file in memory, reserve, map, unmap, remove."""
    directory = str(MEMORY_FILES) if MEMORY_FILES.is_dir() else gettempdir()

    def contend(calls: int, samples: Int64Array, seconds: float) -> int:
        assert calls == 1, "the kernel takes long enough to be timed by itself"
        name = f"farpool-limit-{secrets.token_hex(8)}".encode()
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return limits.slab_files(descriptor, name, nbytes, samples, seconds)
        finally:
            os.close(descriptor)

    return Limit(contend, "kernel alone")
