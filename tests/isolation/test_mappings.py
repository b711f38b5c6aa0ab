"""A tenant that has as many slabs as the server maps for it: others work on, and all goes when its client dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import settle

import farpool
from farpool.client.administration import Administration

CROWD = """
import sys, farpool
pool, slabs = farpool.connect(sys.argv[1], transport="tcp", tenant="crowd", timeout=30), []
try:
    while True:
        slabs.append(pool.allocate_many([1] * 500))
except farpool.FarpoolError as error:
    print(type(error).__name__, error, flush=True)
try:
    while True:
        slabs.append(pool.allocate(1))
except farpool.FarpoolError:
    print(len(slabs), flush=True)
sys.stdin.readline()
"""
WITHIN = 60.0


def mappings_of(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_bytes().count(b"\n")


@pytest.mark.timeout(240)
def test_a_tenant_with_a_crowd_of_slabs_shuts_nobody_out_of_tcp() -> None:
    allowed = int(Path("/proc/sys/vm/max_map_count").read_text())
    if allowed > 70_000:
        pytest.skip("the machine's vm.max_map_count is far above the default: a crowd takes too long to make")
    with farpool.serve_embedded(capacity="1GiB", transports=["tcp"]) as server:
        with Administration(server.url, 20) as administration:
            for tenant in ("crowd", "other"):
                administration.add_tenant(tenant, None)
        command = [sys.executable, "-c", CROWD, server.tcp_url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
            assert crowd.stdout is not None
            try:
                refusal = crowd.stdout.readline()
                assert "TransportUnavailable" in refusal, refusal
                assert 'of the tenant "crowd"' in refusal
                assert "vm.max_map_count" in refusal
                assert crowd.stdout.readline()
                assert mappings_of(server.pid) < allowed * 0.6
                with farpool.connect(server.url, transport="tcp", tenant="other", timeout=20) as pool:
                    slab = pool.allocate("1MiB")
                    slab.write(b"word")
                    assert slab.read(4) == b"word"
                    slab.free()
                    crowd.send_signal(signal.SIGKILL)
                    left = settle(lambda: {"slabs"} if pool.stat().allocated else set(), set(), WITHIN)
                    assert not left
            finally:
                crowd.kill()
        assert mappings_of(server.pid) < allowed * 0.1
        assert "MemoryError" not in server.log()
