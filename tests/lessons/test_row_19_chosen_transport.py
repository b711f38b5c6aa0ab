"""Lessons row 19: tcp was chosen and RDMA initialised all the same; clients of two transports failed outright.

Here a transport loads when it is chosen, each client chooses for itself, and none is ever taken for another.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

LOADED = """
import sys
import farpool

url, transport = sys.argv[1:]
with farpool.connect(url, transport=transport) as pool:
    pool.allocate(4096).write(b"data")
names = sorted(name for name in sys.modules if name.startswith(("farpool.native", "farpool.transports")))
print("\\n".join(names))
"""


@pytest.mark.parametrize("chosen", ["cxl", "tcp"])
def test_only_the_chosen_one_loads(server: EmbeddedServer, chosen: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, server.url, chosen], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert f"farpool.transports.{chosen}.client" in loaded
    for other in {"cxl", "tcp", "rdma"} - {chosen}:
        assert not {name for name in loaded if f".{other}" in name}, f"{other} was loaded for {chosen}"
    assert not {name for name in loaded if name.endswith((".server", "tcp_reactor"))}, "the server's half was loaded"


def test_clients_of_both_at_once(server: EmbeddedServer) -> None:
    with (
        farpool.connect(server.url, transport="cxl") as mapped,
        farpool.connect(server.url, transport="tcp") as remote,
    ):
        slab = mapped.allocate("2MiB", name="mixed")
        twin = remote.open("mixed")
        for number in range(50):
            data = bytes([number]) * (1 << 20)
            slab.write(data)
            assert twin.read(1 << 20) == data
            twin.write(data, offset=1 << 20)
            assert slab.read(1 << 20, 1 << 20) == data
        for _ in range(100):
            slab.fetch_add(8, 1)
            twin.fetch_add(8, 1)
        assert slab.load(8) == twin.load(8) == int.from_bytes(bytes([49]) * 8, "little") + 200
        remote.open("mixed", mode="r").close()
        twin.free()
        with pytest.raises(farpool.StaleSlab):
            slab.read(1)


def test_never_another_one_silently(server: EmbeddedServer) -> None:
    """A transport that the server does not offer is an error, though another would do."""
    with farpool.serve_embedded(capacity="16MiB", transports=["tcp"]) as served:
        with pytest.raises(farpool.TransportUnavailable, match="cxl"):
            farpool.connect(served.url, transport="cxl")
        with farpool.connect(served.url, transport="auto") as pool:
            assert pool.transport == "tcp"
            assert [(name, status) for name, status, _ in pool.transport_report] == [("tcp", "chosen")]
    with farpool.connect(server.url, transport="tcp") as pool:
        assert pool.transport == "tcp"
        assert pool.allocate(8).transport == "tcp"
