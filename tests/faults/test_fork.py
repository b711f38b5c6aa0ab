"""A fork in the middle of transfers: the child starts anew, and the parent's bytes stay its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.faults.conftest import TRANSPORTS, Serve, running, slabs_in, until

import farpool

FORKER = Path(__file__).with_name("forker.py")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_fork_while_threads_transfer(serve: Serve, transport: str) -> None:
    server = serve()
    # Python 3.12 warns of a fork under threads, which is the point here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(FORKER), server.url, transport, "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


HEIR = """
import os, sys, farpool
pool = farpool.connect(sys.argv[1], transport=sys.argv[2])
slab = pool.allocate(8)
slab.write(b"parent's")
child = os.fork()
if child:
    print(slab.id, child, flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize("over", ["unix", "tcp"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_child_that_lives_on_does_not_keep_its_dead_parents_session(serve: Serve, transport: str, over: str) -> None:
    server = serve(session_timeout=1.0)
    url = server.url if over == "unix" else server.tcp_url
    with (
        farpool.connect(server.url, transport="tcp") as pool,
        subprocess.Popen([sys.executable, "-c", HEIR, url, transport], stdin=PIPE, stdout=PIPE) as parent,
    ):
        assert parent.stdout is not None
        slab, child = map(int, parent.stdout.readline().split())
        assert pool.open(slab).read(8) == b"parent's"
        parent.kill()
        parent.wait()
        assert running(child)
        until(lambda: pool.stat().sessions == 1, "the dead parent has no session")
        until(lambda: not slabs_in(server), "the dead parent's slab has no file")
        assert running(child)
