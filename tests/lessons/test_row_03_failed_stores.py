"""Lessons row 3: a store that had failed stayed visible, and later hits returned garbage.

Here a version is published as a whole or not at all, and its checksums are compared before and verified ever after.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

NBYTES = 300_000
OLD, NEW = random.Random(1).randbytes(NBYTES), random.Random(2).randbytes(NBYTES)


def files_of(server: EmbeddedServer) -> set[Path]:
    return set(Path(server.arena).glob("slab-*"))


def number_of(path: Path) -> int:
    """Return the number of the memory that a file is; later ones are higher."""
    return int(path.name.removeprefix("slab-"))


def damage(path: Path, offset: int) -> None:
    """Change one byte behind everybody's back."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def store(slab: farpool.Slab, data: bytes) -> None:
    with slab.reserve() as draft:
        draft.write(data)
        draft.commit()


def test_bytes_that_did_not_arrive_as_written_are_not_published(own_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = pool.allocate(NBYTES, name="row 3")
        store(slab, OLD)
        before = files_of(own_server)
        draft = slab.reserve()
        draft.write(NEW)
        (path,) = files_of(own_server) - before
        damage(path, 12345)
        with pytest.raises(farpool.CorruptData):
            draft.commit()
        assert slab.read(NBYTES) == OLD
        assert pool.open("row 3", mode="r").read(NBYTES) == OLD
        store(slab, NEW)
        assert slab.read(NBYTES) == NEW


def test_a_failed_batch_publishes_none_of_its_slabs(own_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slabs = [pool.allocate(NBYTES) for _ in range(3)]
        for slab in slabs:
            store(slab, OLD)
        drafts = [slab.reserve() for slab in slabs]
        for draft in drafts:
            draft.write(NEW)
        slabs[2].free()
        with pytest.raises(farpool.StaleSlab):
            pool.commit(drafts)
        assert [slab.read(NBYTES) for slab in slabs[:2]] == [OLD, OLD]


def test_what_is_damaged_later_is_no_hit(own_server: EmbeddedServer, transport: str) -> None:
    """Checksums are on without being asked for."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        slab = pool.allocate(NBYTES, name="row 3")
        store(slab, OLD)
        path = max(files_of(own_server), key=number_of)  # that of before may still be held
        damage(path, 200_000)
        for reader in (slab, pool.open("row 3", mode="r")):
            with pytest.raises(farpool.CorruptData, match="crc32c"):
                reader.read(NBYTES)
            with pytest.raises(farpool.CorruptData, match="crc32c"):
                reader.read(10, 199_990)
            assert reader.read(1000) == OLD[:1000]
