"""A client that cuts the file of its slab short harms that slab alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import farpool
from farpool.server.embedded import EmbeddedServer, serve_embedded

LARGE = 4 << 20
"""More than the server receives or sends in one piece."""

ACTS: dict[str, Callable[[farpool.Slab], object]] = {
    "load": lambda slab: slab.load(8),
    "store": lambda slab: slab.store(LARGE - 8, 1),
    "fetch_add": lambda slab: slab.fetch_add(8, 1),
    "small write": lambda slab: slab.write(b"x" * 100, 5000),
    "large write": lambda slab: slab.write(bytes(LARGE)),
    "small read": lambda slab: slab.read(100, 5000),
    "large read": lambda slab: slab.read(LARGE),
}


def repeat(act: Callable[[farpool.Slab], object], slab: farpool.Slab) -> None:
    """The first times may see zeroes, until the server has turned to it."""
    for _ in range(1000):
        act(slab)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB") as running:
        yield running


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_file_that_was_cut_short_ends_its_slab_alone(
    server: EmbeddedServer, act: Callable[[farpool.Slab], object]
) -> None:
    pid = server.pid
    with farpool.connect(server.url, transport="tcp") as pool:
        beside = pool.allocate(LARGE)
        beside.write(b"beside")
        slab = pool.allocate(LARGE)
        slab.write(b"\1" * LARGE)
        os.truncate(Path(server.arena) / f"slab-{slab.id}", 0)
        with pytest.raises(farpool.StaleSlab):
            repeat(act, slab)
        assert beside.read(6) == b"beside"
        assert [info.id for info in pool.slabs()] == [beside.id]
    assert server.pid == pid


def test_the_log_names_the_slab(server: EmbeddedServer) -> None:
    with farpool.connect(server.url, transport="tcp") as pool:
        slab = pool.allocate(4096, name="shortened")
        os.truncate(Path(server.arena) / f"slab-{slab.id}", 0)
        with pytest.raises(farpool.StaleSlab):
            repeat(ACTS["load"], slab)
    assert '"name":"shortened"' in server.log().replace(" ", "")
