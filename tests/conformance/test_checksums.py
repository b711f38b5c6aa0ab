"""Committed bytes are verified as they are read, whole ranges and parts: damage raises, and is not presented."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

BLOCK = 64 << 10
NBYTES = 4 * BLOCK + 1000


def commit(pool: AnyPool, name: str, data: bytes, *, checksum: bool = True) -> AnySlab:
    slab = pool.allocate(len(data), name=name)
    draft = slab.reserve(checksum=checksum)
    draft.write(data)
    draft.commit()
    return slab


def damage(server: EmbeddedServer, offset: int) -> None:
    """Change one byte of the only slab's memory, behind the server's back."""
    paths = list(Path(server.arena).glob("slab-*")) if Path(server.arena).is_dir() else []
    if len(paths) != 1:
        pytest.skip("the memory of slabs is in no file of its own")
    with paths[0].open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_every_range_is_what_was_written(pool: AnyPool) -> None:
    data = random.Random(1).randbytes(NBYTES)
    slab = commit(pool, "ranges", data)
    chance = random.Random(2)
    try:
        for _ in range(60):
            start = chance.choice([0, 1, BLOCK - 1, BLOCK, 2 * BLOCK, 4 * BLOCK, chance.randrange(NBYTES)])
            length = min(chance.choice([0, 1, 8, 1000, BLOCK, BLOCK + 1, NBYTES]), NBYTES - start)
            assert slab.read(length, start) == data[start : start + length]
            buffer = bytearray(length)
            assert slab.read_into(buffer, start) == length
            assert buffer == data[start : start + length]
        offsets = [chance.randrange(NBYTES - 100) for _ in range(300)]
        buffers = [bytearray(chance.randrange(100)) for _ in offsets]
        assert slab.readv(zip(offsets, buffers, strict=True)) == sum(map(len, buffers))
        for offset, buffer in zip(offsets, buffers, strict=True):
            assert buffer == data[offset : offset + len(buffer)]
        assert slab.load(BLOCK) == int.from_bytes(data[BLOCK : BLOCK + 8], "little")
        assert slab.readv([]) == 0
    finally:
        slab.free()


def test_mistakes_are_those_of_any_slab(pool: AnyPool) -> None:
    slab = commit(pool, "mistakes", bytes(NBYTES))
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (farpool.OutOfBounds, lambda: slab.read(1, NBYTES)),
        (farpool.OutOfBounds, lambda: slab.read(NBYTES + 1)),
        (farpool.OutOfBounds, lambda: slab.readv([(0, bytearray(8)), (NBYTES - 7, bytearray(8))])),
        (farpool.OutOfBounds, lambda: slab.load(NBYTES)),
        (farpool.InvalidArgument, lambda: slab.load(4)),
        (farpool.OutOfBounds, lambda: slab.read(1, -1)),
        (farpool.InvalidArgument, lambda: slab.read(1, timeout=-1)),
        (farpool.UnsuitableBuffer, lambda: slab.read_into(b"read-only")),
        (farpool.UnsuitableBuffer, lambda: slab.readv([(0, bytearray(8)), (8, b"read-only")])),
    ]
    for kind, call in calls:
        with pytest.raises(kind):
            call()
    slab.free()


def test_damage_is_seen(own_server: EmbeddedServer, transport: str) -> None:
    """Lessons row 3: what does not hold what was committed is no data."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        data = random.Random(3).randbytes(NBYTES)
        slab = commit(pool, "damaged", data)
        damage(own_server, 2 * BLOCK + 17)
        reads: list[Callable[[], object]] = [
            lambda: slab.read(NBYTES),
            lambda: slab.read(1, 2 * BLOCK),
            lambda: slab.read(BLOCK, 2 * BLOCK + 18),
            lambda: slab.read_into(bytearray(2 * BLOCK), BLOCK),
            lambda: slab.readv([(0, bytearray(8)), (3 * BLOCK - 8, bytearray(8))]),
            lambda: slab.load(2 * BLOCK + 24),
        ]
        if transport == "cxl":
            reads += [slab.view, lambda: slab.array("u1", 8, 2 * BLOCK + 64)]
        for read in reads:
            with pytest.raises(farpool.CorruptData, match="crc32c"):
                read()
        for start, length in ((0, 2 * BLOCK), (3 * BLOCK, NBYTES - 3 * BLOCK), (BLOCK + 5, 100)):
            assert slab.read(length, start) == data[start : start + length]
        draft = slab.reserve()
        draft.write(data)
        draft.commit()
        assert slab.read(NBYTES) == data


def test_without_checksums_nothing_is_verified(own_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = commit(pool, "trusting", bytes(NBYTES), checksum=False)
        damage(own_server, 5)
        assert slab.read(8) == b"\x00\x00\x00\x00\x00\x01\x00\x00"
        with pytest.raises(farpool.ReadOnly):
            slab.write(b"x")


def test_checksums_outlive_the_server(own_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = commit(pool, "kept", bytes(NBYTES))
        own_server.kill()
        own_server.start()
        assert slab.read(NBYTES) == pool.open("kept").read(NBYTES) == bytes(NBYTES)
        damage(own_server, 0)
        for handle in (slab, pool.open("kept")):
            with pytest.raises(farpool.CorruptData):
                handle.read(1)


def test_what_the_writer_knows_is_compared(own_server: EmbeddedServer, transport: str) -> None:
    """Bytes that changed between the write and the commit: nothing is committed, and readers go on with the old."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = pool.allocate(NBYTES, lease="persistent")
        slab.write(b"old")
        draft = slab.reserve()
        draft.write(bytes(NBYTES))
        before = set(Path(own_server.arena).glob("slab-*")) if Path(own_server.arena).is_dir() else set[Path]()
        path = max(before, key=lambda path: int(path.name.removeprefix("slab-")), default=None)
        if path is None:
            pytest.skip("the memory of drafts is in no file of its own")
        with path.open("r+b") as file:
            file.write(b"other")
        with pytest.raises(farpool.CorruptData, match="nothing was committed"):
            draft.commit()
        assert slab.read(3) == b"old"
        draft.close()
        assert slab.write(b"still plain") == 11


def test_writes_in_any_order(pool: AnyPool) -> None:
    """In pieces, twice, backwards, by words and by views: the writer's knowledge is right, or it has none."""
    data = random.Random(4).randbytes(NBYTES)
    slab = pool.allocate(NBYTES)
    for order in range(4):
        draft = slab.reserve()
        pieces = [(start, data[start : start + 9000]) for start in range(0, NBYTES, 9000)]
        if order == 0:
            for start, piece in pieces:
                draft.write(piece, start)
        elif order == 1:
            draft.write(bytes(NBYTES))
            for start, piece in reversed(pieces):
                draft.write(piece, start)
        elif order == 2:
            draft.writev(pieces)
            draft.store(BLOCK + 8, 7)
            draft.write(data[BLOCK : BLOCK + 64], BLOCK)
        else:
            try:
                with draft.view() as view:
                    view[:] = data
            except farpool.NotMappable:
                draft.write(data)
        draft.commit()
        assert slab.read(NBYTES) == data
    slab.free()
