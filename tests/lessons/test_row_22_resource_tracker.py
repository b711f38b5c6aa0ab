"""Lessons row 22: Python's resource tracker unlinked shared memory that another process owned.

Here memory comes as a descriptor from its one owner, the server; a client has nothing to unlink, and no tracker.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

CLIENT = """
import os, signal, sys
import farpool

url, transport, ending = sys.argv[1:]
pool = farpool.connect(url, transport=transport)
slab = pool.open("owned")
held = slab.view() if transport == "cxl" else None
slab.write(b"client", offset=100)
assert slab.read(5) == b"owner"
loaded = sorted(name for name in sys.modules if "resource_tracker" in name or "shared_memory" in name)
assert not loaded, loaded
if ending == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if ending == "closed":
    del held
    pool.close()
if ending == "raised":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("ending", ["closed", "left open", "raised", "killed"])
def test_memory_outlives_its_clients(server: EmbeddedServer, pool: farpool.Pool, transport: str, ending: str) -> None:
    slab = pool.allocate("1MiB", name="owned", lease="session")
    slab.write(b"owner")
    (path,) = (path for path in Path(server.arena).iterdir() if path.name == f"slab-{slab.id}")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore::ResourceWarning", "-c", CLIENT, server.url, transport, ending],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == {"raised": 3, "killed": -9}.get(ending, 0), done.stderr
        assert done.stderr == "", "a tracker complains of what it thinks was leaked"
        assert path.stat().st_size >= 1 << 20
        assert slab.read(5) == b"owner"
        assert slab.read(6, offset=100) == b"client"
        assert pool.open("owned").read(5) == b"owner"
