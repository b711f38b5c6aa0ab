"""A pool whose hosts have caches that do not see each other: lines are written back and fetched anew."""

from __future__ import annotations

import os

from tests.two_hosts.conftest import DEFAULT, Connect, Line

NBYTES = 65_537


def test_calls_and_views_of_both_hosts_agree(host_a: Line, connect: Connect) -> None:
    url = host_a.serve(*DEFAULT, "--transports", "cxl", "--coherence", "software")
    pool = connect(url, "auto")
    assert pool.transport == "cxl"
    slab = pool.allocate(NBYTES, name="incoherent")
    ours, theirs = os.urandom(NBYTES), os.urandom(NBYTES)
    slab.write(ours)
    before = slab.array("u1", NBYTES)
    assert bytes(before) == ours
    host_a("write", slab.name, 0, theirs.hex())
    assert slab.read(NBYTES) == theirs
    slab.invalidate(0, NBYTES)
    assert bytes(before) == theirs
    before[:3] = 1, 2, 3
    slab.flush(0, 3)
    del before
    host_a("write", slab.name, NBYTES - 1, "7f")
    assert slab.read(NBYTES) == b"\1\2\3" + theirs[3:-1] + b"\x7f"
    slab.free()
