"""A client of another user, without capabilities: what it was not granted, the kernel refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.conftest import NOBODY, WITHIN, Serve

import farpool

LOWERED = Path(__file__).with_name("lowered.py")

pytestmark = pytest.mark.root


def as_nobody(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as nobody."""
    command = [sys.executable, str(LOWERED), str(NOBODY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)


def test_a_read_only_grant_cannot_be_written_through(as_root: None, folder: Path, serve: Serve) -> None:
    server = serve(unix=f"{folder}/f.sock", socket_mode="0666")
    with farpool.connect(server.url, transport="cxl") as pool:
        slab = pool.allocate(64 << 10, name="shared")
        slab.write(b"original")
        done = as_nobody("attach", server.url, "shared")
        assert done.returncode == 0, done.stderr
        tries = json.loads(done.stdout)
        assert tries.pop("bytes") == "original"
        assert len(tries) >= 3 + 2 * 6, "the slab's and the generations' descriptors were to be tried"
        assert not [what for what, error in tries.items() if not error], tries
        assert slab.read(64 << 10) == b"original" + bytes((64 << 10) - 8)
        slab.write(b"changed")


def test_a_socket_of_mode_0600_admits_nobody_else(as_root: None, folder: Path, serve: Serve) -> None:
    server = serve(unix=f"{folder}/f.sock")
    done = as_nobody("attach", server.url, "shared")
    assert done.returncode != 0
    assert "PermissionDenied" in done.stderr
    assert server.url in done.stderr
