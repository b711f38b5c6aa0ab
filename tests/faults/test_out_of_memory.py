"""A server that gets no more memory: what needs some is an error that says so, all else goes on, and all does later."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faults.conftest import TRANSPORTS, WITHIN, Serve, is_empty, until

import farpool
from farpool.server.embedded import EmbeddedServer

MIB = 1 << 20


def starve(server: EmbeddedServer, *, enough: bool = False) -> None:
    """Let a server have no more memory than it has, or *enough* again."""
    _, most = resource.prlimit(server.pid, resource.RLIMIT_AS)
    used = re.search(r"VmSize:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert used is not None
    resource.prlimit(server.pid, resource.RLIMIT_AS, (most if enough else int(used[1]) * 1024, most))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_without_memory_refuses_and_goes_on(serve: Serve, transport: str) -> None:
    server = serve(capacity="256MiB")
    with farpool.connect(server.url, transport=transport) as pool:
        small, large = pool.allocate(4096), pool.allocate(32 * MIB)
        draft = large.reserve()
        draft.write(b"\xa5" * (32 * MIB))
        starve(server)
        if transport == "tcp":  # the server maps it
            with pytest.raises(farpool.TransportUnavailable, match="memory limit"):
                pool.allocate(64 * MIB)
        with suppress(farpool.FarpoolError):  # its checksums take a buffer, for which the heap may have room
            draft.commit()
        for _ in range(10):
            with farpool.connect(server.url, transport=transport) as other:
                assert other.stat().slabs >= 2
        small.write(b"word")
        assert small.read(4) == b"word"
        starve(server, enough=True)
        if not draft.committed:
            draft.commit()
        assert large.read(32 * MIB) == b"\xa5" * (32 * MIB)
        pool.allocate(64 * MIB).free()


CROWD = """
import sys, farpool
pool = farpool.connect(sys.argv[1], transport="cxl")
slabs = [pool.allocate_many([1] * 1000) for _ in range(40)]
print("made", flush=True)
sys.stdin.readline()
"""


def test_what_an_ended_session_had_goes_once_there_is_memory_for_that(serve: Serve) -> None:
    """A list of all its slabs takes more than the heap has: that its client has died must not be forgotten."""
    server = serve(capacity="256MiB")
    with subprocess.Popen(
        [sys.executable, "-c", CROWD, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as crowd:
        assert crowd.stdout is not None
        try:
            assert crowd.stdout.readline() == "made\n"
            starve(server)
        finally:
            crowd.kill()
    until(lambda: "no memory to clear up with" in server.log(), "the server has tried to clear up")
    starve(server, enough=True)
    with farpool.connect(server.url, transport="cxl", timeout=WITHIN) as pool:
        until(lambda: is_empty(pool), "all that the session had is gone")
