"""Lessons row 19: tcp was chosen and RDMA initialised all the same; mixed clients of tcp and RDMA failed outright.

``test_row_19_chosen_transport.py`` has the other transports. Here the server offers rdma too.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import farpool

TCP_ALONE = """
import sys
import farpool

with farpool.connect(sys.argv[1], transport="tcp") as pool:
    pool.allocate(4096).write(b"data")
loaded = [name for name in sys.modules if "rdma" in name or "verbs" in name]
assert not loaded, loaded
assert "libibverbs" not in open("/proc/self/maps").read()
"""


def test_a_tcp_client_of_a_server_with_rdma_loads_nothing_of_it() -> None:
    """Whether the server has a device or only says that it has none."""
    with farpool.serve_embedded(capacity="16MiB", transports=["tcp", "rdma"]) as server:
        done = subprocess.run(
            [sys.executable, "-c", TCP_ALONE, server.url], capture_output=True, text=True, timeout=100, check=False
        )
    assert done.returncode == 0, done.stderr


def test_a_server_without_a_device_serves_the_others_and_says_why() -> None:
    with farpool.serve_embedded(
        capacity="16MiB", transports=["tcp", "rdma"], transport_settings={"rdma": {"device": "none0"}}
    ) as server:
        with farpool.connect(server.url) as pool:
            assert pool.transport == "tcp"
            report = {name: (status, reason) for name, status, reason in pool.transport_report}
            assert report["rdma"][0] == "unusable"
            assert "RDMA" in report["rdma"][1] or "rdma" in report["rdma"][1]
        with pytest.raises(farpool.TransportUnavailable, match="rdma"):
            farpool.connect(server.url, transport="rdma")


@pytest.mark.lab
def test_clients_of_both_at_once(rdma_device: str) -> None:
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["tcp", "rdma"]) as server,
        farpool.connect(server.url, transport="rdma") as direct,
        farpool.connect(server.url, transport="tcp") as plain,
    ):
        slab = direct.allocate("64KiB", name="mixed")
        twin = plain.open("mixed")
        for number in range(10):
            data = bytes([number]) * 32768
            slab.write(data)
            assert twin.read(32768) == data
            twin.write(data, 32768)
            assert slab.read(32768, 32768) == data
        assert slab.fetch_add(0, 1) == int.from_bytes(bytes([9]) * 8, "little")
        with pytest.raises(ValueError, match="atomic"):
            twin.fetch_add(0, 1)
        twin.free()
        with pytest.raises(farpool.StaleSlab):
            slab.read(1)
