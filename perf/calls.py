"""Calls of the client API as contenders: one Python loop for each operation, over the places it works at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice

from farpool import Slab
from farpool.perf.rounds import Contender, in_python
from farpool.perf.walk import Bytes, Int64Array

__all__ = [
    "Gather",
    "Move",
    "Part",
    "Readv",
    "additions",
    "batches",
    "copies",
    "copies_by_keyword",
    "empty_calls",
    "gathers",
    "loads",
    "stores",
    "swaps",
]

Part = tuple[int, memoryview]
Readv = Callable[[list[Part]], int]
Gather = Callable[[Int64Array, int, Bytes], int]
Move = Callable[..., int]
"""``read_into`` or ``write``."""


def copies(move: Move, buffer: Bytes, offsets: Int64Array) -> Contender:
    """Return one call of *move* with all of *buffer* at each offset in turn."""

    def run(block: Sequence[int]) -> None:
        for offset in block:
            move(buffer, offset)

    return in_python(run, offsets.tolist())


def copies_by_keyword(move: Move, buffer: Bytes, offsets: Int64Array) -> Contender:
    """Return the same with the offset by its name."""

    def run(block: Sequence[int]) -> None:
        for offset in block:
            move(buffer, offset=offset)

    return in_python(run, offsets.tolist())


def batches(readv: Readv, buffer: Bytes, offsets: Int64Array, nbytes: int, batch: int) -> Contender:
    """Return calls with *batch* parts of *nbytes* each, into parts of one buffer."""
    whole = memoryview(buffer)
    parts = cycle(whole[begin : begin + nbytes] for begin in range(0, len(whole), nbytes))
    turn = zip(offsets.tolist(), parts, strict=False)
    calls = [list(islice(turn, batch)) for _ in range(len(offsets) // batch)]

    def run(block: Sequence[list[Part]]) -> None:
        for parts in block:
            readv(parts)

    return in_python(run, calls)


def gathers(gather: Gather, buffer: Bytes, offsets: Int64Array, nbytes: int, batch: int) -> Contender:
    """Return calls with *batch* parts of *nbytes* each, which fill *buffer*."""
    calls = [offsets[begin : begin + batch] for begin in range(0, len(offsets) - batch + 1, batch)]

    def run(block: Sequence[Int64Array]) -> None:
        for parts in block:
            gather(parts, nbytes, buffer)

    return in_python(run, calls)


def loads(slab: Slab, offsets: Int64Array) -> Contender:
    """Return one load at each offset in turn."""
    load = slab.load

    def run(block: Sequence[int]) -> None:
        for offset in block:
            load(offset)

    return in_python(run, offsets.tolist())


def stores(slab: Slab, offsets: Int64Array) -> Contender:
    """Return one store of 1 at each offset in turn."""
    store = slab.store

    def run(block: Sequence[int]) -> None:
        for offset in block:
            store(offset, 1)

    return in_python(run, offsets.tolist())


def additions(slab: Slab, offsets: Int64Array) -> Contender:
    """Return one atomic addition at each offset in turn."""
    fetch_add = slab.fetch_add

    def run(block: Sequence[int]) -> None:
        for offset in block:
            fetch_add(offset, 1)

    return in_python(run, offsets.tolist())


def swaps(slab: Slab, offsets: Int64Array) -> Contender:
    """Return one atomic exchange at each offset in turn, of 1 for 1."""
    compare_swap = slab.compare_swap

    def run(block: Sequence[int]) -> None:
        for offset in block:
            compare_swap(offset, 1, 1)

    return in_python(run, offsets.tolist())


def empty_calls(offsets: Int64Array) -> Contender:
    """Return calls of a built-in function that does next to nothing, in the same loop as the others."""
    measured = b"12345678"

    def run(block: Sequence[int]) -> None:
        for _ in block:
            len(measured)

    return in_python(run, offsets.tolist())
