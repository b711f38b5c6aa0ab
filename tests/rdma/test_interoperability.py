"""The control plane's messages are enough to reach a slab: pyverbs needs nothing else of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import farpool
from farpool.transports.rdma.binding import Binding

PROGRAM = Path(__file__).with_name("bare_pyverbs.py")


@pytest.mark.lab
def test_a_program_of_others_works_on_a_slab(rdma_device: str, pyverbs: Binding) -> None:
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["tcp", "rdma"]) as server,
        farpool.connect(server.url, transport="tcp") as pool,
    ):
        slab = pool.allocate(8192, name="shared", atomics="rdma")
        slab.write(b"0123456789abcdef", 64)
        slab.store(0, 1000)
        slab.store(8, 40)
        done = subprocess.run(
            [sys.executable, PROGRAM, server.url.removeprefix("unix://"), "shared", rdma_device],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "read": "0123456789abcdef",
            "added": [1000, 1005, 1010],
            "swapped": [40, 40],
        }
        assert slab.load(0) == 1015
        assert slab.load(8) == 99
        assert slab.read(18, 128) == b"written by pyverbs"
        assert slab.read(2048, 2048) == bytes(range(256)) * 8
