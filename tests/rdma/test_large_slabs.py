"""A large slab is registered while the server goes on to serve others, and may end meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import farpool
from farpool.server.embedded import EmbeddedServer

LARGE = 96 << 20
TIMEOUT = 60.0


@pytest.fixture
def server(rdma_device: str) -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="256MiB", transports=["tcp", "rdma"]) as running:
        yield running


@pytest.fixture
def connect(server: EmbeddedServer) -> Iterator[Callable[[str], farpool.Pool]]:
    pools: list[farpool.Pool] = []

    def connected(transport: str) -> farpool.Pool:
        pools.append(farpool.connect(server.url, transport=transport, timeout=TIMEOUT))
        return pools[-1]

    yield connected
    for pool in pools:
        pool.close()


def pinned(server: EmbeddedServer) -> int:
    """Return the KiB that the kernel holds in place for the server."""
    facts = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return next(int(fact.split()[1]) for fact in facts if fact.startswith("VmPin:"))


def test_a_large_slab_is_reached_by_all_who_may(connect: Callable[[str], farpool.Pool]) -> None:
    writer, reader = connect("rdma"), connect("rdma")
    slab = writer.allocate(LARGE, name="large")
    slab.write(b"first")
    slab.write(b"last", LARGE - 4)
    seen = reader.open("large", mode="r")
    assert (seen.read(5), seen.read(4, LARGE - 4)) == (b"first", b"last")
    with pytest.raises(farpool.ReadOnly):
        seen.write(b"x")


def test_others_are_served_while_a_large_slab_is_registered(connect: Callable[[str], farpool.Pool]) -> None:
    owner, other, bystander = connect("tcp"), connect("rdma"), connect("tcp")
    owner.allocate(LARGE, name="large").write(b"bytes")
    opened = threading.Event()

    def ask() -> None:
        while not opened.is_set():
            bystander.stat()
            served.append(time.monotonic())

    served: list[float] = []
    asking = threading.Thread(target=ask)
    asking.start()
    while len(served) < 3:
        time.sleep(0.01)
    begun = time.monotonic()
    slab = other.open("large", mode="r")
    ended = time.monotonic()
    opened.set()
    asking.join()
    assert slab.read(5) == b"bytes"
    steps = [begun, *(at for at in served if begun < at < ended), ended]
    longest = max(later - earlier for earlier, later in itertools.pairwise(steps))
    assert longest < (ended - begun) * 0.8, f"nobody was served for {longest:.3f} s of {ended - begun:.3f} s"


def test_a_slab_that_ends_while_it_is_registered_leaves_nothing(
    server: EmbeddedServer, connect: Callable[[str], farpool.Pool]
) -> None:
    owner, other = connect("tcp"), connect("rdma")
    before = pinned(server)
    for pause in (0.0, 0.002, 0.01, 0.05):
        slab = owner.allocate(LARGE, name="large")
        outcome: list[object] = []

        def open_it(outcome: list[object] = outcome) -> None:
            try:
                outcome.append(other.open("large", mode="r"))
            except farpool.FarpoolError as error:
                outcome.append(error)

        opening = threading.Thread(target=open_it)
        opening.start()
        time.sleep(pause)
        slab.free()
        opening.join()
        (result,) = outcome
        if isinstance(result, farpool.Slab):
            with pytest.raises(farpool.StaleSlab):
                result.read(5)
        else:
            assert isinstance(result, (farpool.StaleSlab, farpool.SlabNotFound))
    end = time.monotonic() + TIMEOUT
    while pinned(server) != before and time.monotonic() < end:
        time.sleep(0.05)
    assert pinned(server) == before


def test_who_opens_a_slab_while_it_is_committed_sees_what_was_committed(
    server: EmbeddedServer, connect: Callable[[str], farpool.Pool]
) -> None:
    owner, other = connect("tcp"), connect("rdma")
    slab = owner.allocate(LARGE, name="large")
    for number, pause in enumerate((0.0, 0.005, 0.02, 0.05)):
        draft = slab.reserve()
        draft.write(bytes([number]) * 8)
        seen: list[farpool.Slab] = []

        def open_it(seen: list[farpool.Slab] = seen) -> None:
            seen.append(other.open("large", mode="r"))

        opening = threading.Thread(target=open_it)
        opening.start()
        time.sleep(pause)
        draft.commit()
        opening.join()
        assert seen[0].read(8) == bytes([number]) * 8
        seen[0].close()
