"""Both hosts see the same bytes and words, whichever way host B reaches them; host A looks at its own memory."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from tests.two_hosts.conftest import TRANSPORTS, Connect, Line

import farpool

NBYTES = 1 << 20
PIECES = ((0, 1), (61, 4096), (8191, 65_537), (300_001, NBYTES - 300_001))
"""Offset and length; most begin or end inside a cache line or page."""


def bytes_of(seed: int, nbytes: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_host_reads_what_the_other_wrote(host_a: Line, url: str, connect: Connect, transport: str) -> None:
    slab = connect(url, transport).allocate(NBYTES, name=f"bytes-{transport}")
    assert host_a("digest", slab.name, 0, NBYTES) == digest_of(bytes(NBYTES))
    for offset, nbytes in PIECES:
        data = bytes_of(nbytes, nbytes)
        assert slab.write(data, offset) == nbytes
        assert host_a("digest", slab.name, offset, nbytes) == digest_of(data)
        theirs = bytes_of(offset, min(nbytes, 65_536))
        host_a("write", slab.name, offset, theirs.hex())
        assert slab.read(len(theirs), offset) == theirs
    slab.free()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_batches_of_one_host_are_the_others_bytes(host_a: Line, url: str, connect: Connect, transport: str) -> None:
    slab = connect(url, transport).allocate(NBYTES, name=f"batches-{transport}")
    offsets = [number * 25_013 for number in range(40)]
    slab.writev([(offset, bytes_of(offset, 1009)) for offset in offsets])
    whole = bytearray(NBYTES)
    for offset in offsets:
        whole[offset : offset + 1009] = bytes_of(offset, 1009)
    assert host_a("digest", slab.name, 0, NBYTES) == digest_of(bytes(whole))
    theirs = bytes_of(1, 65_536)
    host_a("write", slab.name, 400_000, theirs.hex())
    parts = [(400_000 + start, bytearray(2048)) for start in range(0, len(theirs), 2048)]
    assert slab.readv(parts) == len(theirs)
    assert b"".join(part for _, part in parts) == theirs
    slab.free()


def test_what_is_written_over_one_transport_is_read_over_the_others(url: str, connect: Connect) -> None:
    pools = {transport: connect(url, transport) for transport in TRANSPORTS}
    first = pools["cxl"].allocate(NBYTES, name="shared")
    slabs = {transport: pool.open("shared") for transport, pool in pools.items()}
    for turn, (writer, slab) in enumerate(slabs.items()):
        data = bytes_of(turn, 65_536)
        slab.write(data, 4093 * turn)
        slab.store(NBYTES - 8, turn + 1)
        for reader in slabs.values():
            assert reader.read(len(data), 4093 * turn) == data, (writer, reader.transport)
            assert reader.load(NBYTES - 8) == turn + 1
    first.free()
    for slab in slabs.values():
        with pytest.raises(farpool.StaleSlab):
            slab.read(1)


@pytest.mark.parametrize(("ours", "theirs"), [("tcp", "cxl"), ("rdma", "rdma"), ("cxl", "cxl")])
def test_no_addition_of_either_host_is_lost(host_a: Line, url: str, connect: Connect, ours: str, theirs: str) -> None:
    if ours == "cxl" and os.environ["LAB_CXL_KIND"] != "nvdimm":
        pytest.skip("QEMU's CXL memory loses atomics of two guests; run farpool-lab with --cxl-kind nvdimm")
    rounds = 300 if ours != "cxl" else 20_000
    slab = connect(url, ours).allocate(4096, name=f"words-{ours}")
    host_a.begin("add", theirs, slab.name, 8, rounds)
    seen = sum(slab.fetch_add(8, 1) for _ in range(rounds))
    seen += host_a.finish()
    assert slab.load(8) == 2 * rounds
    assert seen == sum(range(2 * rounds)), "each value is returned to one host"
    assert slab.compare_swap(8, 2 * rounds, 7) == 2 * rounds
    assert slab.compare_swap(8, 2 * rounds, 9) == 7
    slab.free()


# The choice of a transport ---------------------------------------------------------------------------------------


def test_auto_takes_the_shared_device_and_says_why(url: str, connect: Connect) -> None:
    pool = connect(url, "auto")
    assert pool.transport == "cxl"
    assert [tuple(line) for line in pool.transport_report] == [
        ("cxl", "chosen", ""),
        ("rdma", "untried", "cxl is faster, and usable"),
        ("tcp", "untried", "cxl is faster, and usable"),
    ]


@contextmanager
def as_nobody() -> Generator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_auto_without_the_right_to_the_device_says_which_right(url: str, connect: Connect) -> None:
    connect(url, "rdma")  # whatever it loads is loaded as root
    with as_nobody():
        pool = connect(url, "auto")
    assert pool.transport != "cxl"
    name, status, reason = pool.transport_report[0]
    assert (name, status) == ("cxl", "unusable")
    device = os.environ["LAB_DAX"]
    assert f"no permission to open {device}" in reason
    assert reason.endswith(f"run as root: setfacl -m u:nobody:r {device}")
