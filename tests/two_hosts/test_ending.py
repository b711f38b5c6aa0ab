"""What ends on one host while the other goes on: a client, the server, the wire for a moment."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import settle
from tests.faults.conftest import ClientProcess
from tests.two_hosts.conftest import TIMEOUT, TRANSPORTS, WITHIN, Connect, Line

import farpool

UNIT = 2 << 20
"""What a slab takes of the device."""
LOST = farpool.ServerLost, farpool.DeadlineExceeded


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_killed_client_is_noticed_and_what_it_held_is_reclaimed(url: str, connect: Connect, transport: str) -> None:
    pool = connect(url, "tcp")
    before = pool.stat()
    client = ClientProcess(url, transport, "sync", TIMEOUT, 65_536, held=True, within=WITHIN)
    try:
        assert client.slab in [info.id for info in pool.slabs()]
        client.send(signal.SIGKILL)
    finally:
        client.end()
    left = settle(lambda: {info.id for info in pool.slabs() if info.state != "reclaiming"}, set(), WITHIN)
    assert not left, "a session slab outlives its session"
    now = pool.stat()
    assert (now.sessions, now.allocated) == (before.sessions, before.allocated)
    # Host A cannot see that the process is gone: it may store to the device as far as host A knows.
    assert now.reclaiming - before.reclaiming == (UNIT if transport == "cxl" else 0)
    assert now.transports["rdma"]["queue_pairs"] == before.transports["rdma"]["queue_pairs"]


def test_clients_go_on_after_a_killed_server_came_back(host_a: Line, url: str, connect: Connect) -> None:
    slabs = [connect(url, transport).allocate(4096, name=f"kept-{transport}") for transport in TRANSPORTS]
    for slab in slabs:
        slab.write(b"before")
    host_a("restart")
    for slab in slabs:
        assert slab.read(6) == b"before"
        slab.write(b"after", 6)
        assert slab.read(11) == b"beforeafter"
        again = connect(url, slab.transport).open(str(slab.name))  # the device has a new incarnation
        assert again.read(11) == b"beforeafter"
        slab.free()


@contextmanager
def pulled_cable() -> Generator[None]:
    """Let the wire carry nothing."""
    (device,) = [path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo"]
    subprocess.run(["ip", "link", "set", device, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", device, "up"], check=True)


def test_a_cable_that_is_pulled_is_an_error_in_time_and_then_all_goes_on(url: str, connect: Connect) -> None:
    slabs = {transport: connect(url, transport).allocate(4096) for transport in TRANSPORTS}
    for slab in slabs.values():
        slab.write(b"before")
    with pulled_cable():
        for transport in ("tcp", "rdma"):
            with pytest.raises(LOST):
                slabs[transport].read(6, timeout=2)
        assert slabs["cxl"].read(6, timeout=2) == b"before", "the wire takes no part in it"
    for slab in slabs.values():
        assert slab.read(6) == b"before"
        slab.write(b"after", 6)
        assert slab.read(11) == b"beforeafter"
        slab.free()
