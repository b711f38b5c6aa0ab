"""Lessons row 1: a writer died in the middle of a put, and the key could be neither read nor removed.

Here what is written stays in a draft until it is committed, and a draft ends with its writer by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.lessons.conftest import until

import farpool

if TYPE_CHECKING:
    from tests.lessons.conftest import StartWriter

    from farpool.server.embedded import EmbeddedServer

NBYTES = 256 << 10
OLD, NEW = b"\x11" * NBYTES, b"\x33" * NBYTES


def publish(slab: farpool.Slab, data: bytes) -> None:
    with slab.reserve() as draft:
        draft.write(data)
        draft.commit()


def test_readable_and_writable_while_and_after_the_writer_dies(
    server: EmbeddedServer, pool: farpool.Pool, start_writer: StartWriter
) -> None:
    slab = pool.allocate(NBYTES, name="row 1")
    publish(slab, OLD)
    before = pool.stat().allocated
    writer = start_writer(server, "row 1")
    assert slab.read(NBYTES) == OLD
    writer.kill()
    assert slab.read(NBYTES) == OLD
    assert pool.open("row 1", mode="r").read(NBYTES) == OLD
    publish(slab, NEW)
    assert slab.read(NBYTES) == NEW
    until(lambda: pool.stat().allocated == before, "the dead writer's draft is charged no more")
    slab.free()
    with pytest.raises(farpool.SlabNotFound):
        pool.open("row 1")


def test_removable_while_the_writer_is_in_the_middle(
    server: EmbeddedServer, pool: farpool.Pool, start_writer: StartWriter
) -> None:
    slab = pool.allocate(NBYTES, name="row 1 removed")
    writer = start_writer(server, "row 1 removed")
    slab.free()
    with pytest.raises(farpool.SlabNotFound):
        pool.open("row 1 removed")
    successor = pool.allocate(NBYTES, name="row 1 removed")
    publish(successor, OLD)
    writer.go_on("StaleSlab")
    assert successor.read(NBYTES) == OLD
    successor.free()


def test_the_name_is_free_again_when_the_first_put_dies(
    server: EmbeddedServer, pool: farpool.Pool, start_writer: StartWriter
) -> None:
    start_writer(server, "row 1 first").kill()

    def free_again() -> bool:
        try:
            pool.open("row 1 first").close()
        except farpool.SlabNotFound:
            return True
        return False

    until(free_again, "the dead writer's name is nobody's")
    slab = pool.allocate(NBYTES, name="row 1 first")
    publish(slab, NEW)
    assert slab.read(NBYTES) == NEW
    slab.free()
