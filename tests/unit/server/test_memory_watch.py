"""A client that cuts the file of its slab short harms that slab alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.certificates import authority

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
    "batch of reads": lambda slab: slab.readv([(8, bytearray(100)), (LARGE - 100, bytearray(100))]),
    "batch of writes": lambda slab: slab.writev([(8, b"x" * 100), (LARGE - 100, b"x" * 100)]),
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB") as running:
        yield running


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_file_that_was_cut_short_ends_its_slab_alone(
    server: EmbeddedServer, act: Callable[[farpool.Slab], object]
) -> None:
    """The operation that finds it out is the first to fail: what stands in for the file are zeroes."""
    pid = server.pid
    with farpool.connect(server.url, transport="tcp") as pool:
        beside = pool.allocate(LARGE)
        beside.write(b"beside")
        slab = pool.allocate(LARGE)
        slab.write(b"\1" * LARGE)
        os.truncate(Path(server.arena) / f"slab-{slab.id}", 0)
        with pytest.raises(farpool.StaleSlab):
            act(slab)
        assert beside.read(6) == b"beside"
        assert [info.id for info in pool.slabs()] == [beside.id]
    assert server.pid == pid


@pytest.mark.parametrize("act", ["large read", "large write"])
def test_what_is_half_done_when_it_comes_to_the_end_of_a_file_is_no_success(server: EmbeddedServer, act: str) -> None:
    """Half of the answer is out by then, or half of the payload in the slab."""
    with farpool.connect(server.url, transport="tcp") as pool:
        slab = pool.allocate(LARGE)
        slab.write(b"\1" * LARGE)
        os.truncate(Path(server.arena) / f"slab-{slab.id}", LARGE - 8192)
        assert slab.read(100) == b"\1" * 100
        with pytest.raises(farpool.StaleSlab):
            ACTS[act](slab)


@pytest.fixture(scope="module")
def encrypted() -> Iterator[EmbeddedServer]:
    pytest.importorskip("farpool.native.tls", reason="built only where libssl-dev is: apt-get install libssl-dev")
    with serve_embedded(capacity="64MiB", transports=["tcp"], tls=authority().server().settings) as running:
        yield running


@pytest.mark.parametrize(
    ("act", "left"),
    [("load", 0), ("small write", 0), ("small read", 0), ("large write", LARGE - 8192), ("large read", LARGE - 8192)],
)
def test_no_zero_is_encrypted_and_sent_as_the_bytes_of_a_file(encrypted: EmbeddedServer, act: str, left: int) -> None:
    """OpenSSL reads the slab itself, where clear bytes are the kernel's to read."""
    with farpool.connect(encrypted.tcp_url, transport="tcp", tls=farpool.Tls(ca=authority().ca)) as pool:
        slab = pool.allocate(LARGE)
        slab.write(b"\1" * LARGE)
        os.truncate(Path(encrypted.arena) / f"slab-{slab.id}", left)
        with pytest.raises(farpool.StaleSlab):
            ACTS[act](slab)


def test_others_requests_on_the_connection_are_answered_beside_it(server: EmbeddedServer) -> None:
    with farpool.connect(server.url, transport="tcp") as pool:
        slabs = [pool.allocate(4096) for _ in range(20)]
        for slab in slabs:
            slab.write(b"\1" * 4096)
        os.truncate(Path(server.arena) / f"slab-{slabs[7].id}", 0)
        with ThreadPoolExecutor(len(slabs)) as threads:
            reads = [threads.submit(slab.read, 4096) for slab in slabs]
        for slab, read in zip(slabs, reads, strict=True):
            if slab is slabs[7]:
                assert isinstance(read.exception(), farpool.StaleSlab)
            else:
                assert read.result() == b"\1" * 4096


def test_who_waits_for_a_word_is_not_told_of_the_zero_in_its_place(server: EmbeddedServer) -> None:
    with farpool.connect(server.url, transport="tcp") as pool, ThreadPoolExecutor(1) as thread:
        slab = pool.allocate(4096)
        slab.store(8, 1)
        waiting = thread.submit(slab.wait, 8, 1, timeout=30)
        time.sleep(0.3)  # it is parked by then, most likely; what asks later is told by the data plane
        os.truncate(Path(server.arena) / f"slab-{slab.id}", 0)
        assert isinstance(waiting.exception(), farpool.StaleSlab)


def test_the_log_names_the_slab(server: EmbeddedServer) -> None:
    with farpool.connect(server.url, transport="tcp") as pool:
        slab = pool.allocate(4096, name="shortened")
        os.truncate(Path(server.arena) / f"slab-{slab.id}", 0)
        with pytest.raises(farpool.StaleSlab):
            ACTS["load"](slab)
    assert '"name":"shortened"' in server.log().replace(" ", "")
