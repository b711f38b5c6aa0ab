"""A transport of another package: installed, found through its entry point, and used without a change in Farpool.

What it does is held by ``tests/conformance``; here is only how it is found.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import farpool
from farpool.transports.registry import find_transport, transport_names

pytestmark = pytest.mark.usefixtures("stream_transport")


def test_it_is_found_by_its_entry_point() -> None:
    assert {"cxl", "tcp", "stream"} <= set(transport_names())
    assert find_transport("stream").rank == 90


def test_a_pool_uses_it() -> None:
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["stream", "tcp"]) as server,
        farpool.connect(server.url, transport="stream") as pool,
        farpool.connect(server.url, transport="tcp") as other,
    ):
        slab = pool.allocate("3MiB", name="shared")
        slab.write(b"over a stream", offset=(1 << 20) - 5)
        assert slab.transport == "stream"
        assert other.open("shared").read(13, offset=(1 << 20) - 5) == b"over a stream"


def test_auto_passes_it_over_for_a_faster_one() -> None:
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["stream", "tcp"]) as server,
        farpool.connect(server.url) as pool,
    ):
        assert pool.transport == "tcp"


def test_naming_it_loads_neither_half() -> None:
    program = """
import sys
from farpool.transports.registry import find_transport
find_transport("stream")
loaded = {"farpool_stream.serving", "farpool_stream.reaching", "farpool.transports.cxl", "farpool.transports.tcp"}
sys.exit(", ".join(loaded & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
