"""Lessons row 14: killing the peer took the survivor down too.

Here a dead peer is an exception on the handles that need it, in a process that goes on.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

LOST = (farpool.ServerLost, farpool.DeadlineExceeded)

CLIENT = """
import sys, threading
import farpool

url, transport = sys.argv[1:]
pool = farpool.connect(url, transport=transport, timeout=1)
slabs = [pool.allocate(1 << 20) for _ in range(4)]
errors = []

def work(slab):
    try:
        while True:
            slab.write(bytes(1 << 20))
            slab.read(1 << 20)
            pool.stat()
    except farpool.FarpoolError as error:
        errors.append(error)

threads = [threading.Thread(target=work, args=(slab,)) for slab in slabs]
for thread in threads:
    thread.start()
print("working", flush=True)
for thread in threads:
    thread.join()
assert all(isinstance(error, (farpool.ServerLost, farpool.DeadlineExceeded)) for error in errors), errors
pool.close()
print("survived", len(errors))
"""


def start_client(server: EmbeddedServer, transport: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.url, transport],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    return child


def test_server_killed_under_many_threads(own_server: EmbeddedServer, transport: str) -> None:
    with start_client(own_server, transport) as child:
        own_server.kill()
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "survived 4\n"), err


def test_one_server_dies_and_the_other_pool_does_not_notice(
    own_server: EmbeddedServer, pool: farpool.Pool, transport: str
) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=0.3) as doomed:
        gone, kept = doomed.allocate(4096), pool.allocate(4096)
        gone.write(b"gone")
        kept.write(b"kept")
        own_server.kill()
        with pytest.raises(LOST):
            doomed.stat()
        if transport == "cxl":
            assert gone.read(4) == b"gone", "mapped memory outlives the server's process: no SIGBUS"
        else:
            with pytest.raises(LOST):
                gone.read(4)
        assert kept.read(4) == b"kept"
        assert pool.stat().sessions >= 1
        with suppress(farpool.FarpoolError):
            gone.close()


def test_client_killed_in_the_middle_of_transfers(server: EmbeddedServer, pool: farpool.Pool, transport: str) -> None:
    slab, pid = pool.allocate(1 << 16), pool.stat().pid
    slab.write(b"\x5a" * (1 << 16))
    for _ in range(2):
        with start_client(server, transport) as child:
            child.kill()
            child.communicate(timeout=60)
        assert slab.read(1 << 16) == b"\x5a" * (1 << 16)
        assert pool.stat().pid == pid
