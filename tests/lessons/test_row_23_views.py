"""Lessons row 23: no close while a view lived, a segfault where it could be closed, SIGBUS on small shared memory.

Here views are counted and keep the memory, closing under them is a clear error, and a slab's pages are reserved
before anybody gets the slab.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from farpool.server.embedded import EmbeddedServer

ABUSE = """
import gc, sys
import numpy as np
import farpool

url = sys.argv[1]
pool, other = farpool.connect(url, transport="cxl"), farpool.connect(url, transport="cxl")
slab = pool.allocate("4MiB")
array, view = slab.array("f4", (1024, 1024)), slab.view()
part = array[100:200, ::2]
assert isinstance(part.base, np.ndarray)
for close in (slab.close, slab.free):
    try:
        close()
    except farpool.RegionInUse as error:
        assert "delete them" in str(error), error
    else:
        raise AssertionError("closed under views")
other.open(slab.id).free()
other.allocate("4MiB").write(b"\\xff" * (4 << 20))
pool.close()
other.close()
del slab, pool, other
gc.collect()
array[:] = 1.5
view[0:4] = b"abcd"
assert part.sum() == 100 * 512 * 1.5
del array
gc.collect()
assert part[0, 0] == 1.5
print("alive")
"""


@pytest.fixture
def mapped(server: EmbeddedServer) -> Iterator[farpool.Pool]:
    with farpool.connect(server.url, transport="cxl") as pool:
        yield pool


def test_views_that_outlive_slab_pool_and_server_side(server: EmbeddedServer) -> None:
    """In a process of its own, which ends with views alive: a segfault would be its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", ABUSE, server.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_close_under_a_view_is_refused_and_possible_later(mapped: farpool.Pool) -> None:
    slab = mapped.allocate(4096)
    views = [slab.view(), slab.view(8, 8), slab.array("u1", 16), slab.array("u8", 2)[::2]]
    with pytest.raises(farpool.RegionInUse, match="4"):
        slab.close()
    slab.write(b"still usable")
    del views
    gc.collect()
    slab.close()


def test_pages_are_reserved_up_front(server: EmbeddedServer, mapped: farpool.Pool) -> None:
    slab = mapped.allocate("8MiB")
    held = Path(server.arena, f"slab-{slab.id}").stat()
    assert held.st_blocks * 512 >= 8 << 20, "the pages are there before the first byte is written"
    assert held.st_size >= 8 << 20


def test_full_pool_is_an_error_and_no_signal(server: EmbeddedServer, mapped: farpool.Pool) -> None:
    free = mapped.stat().free
    slabs = [mapped.allocate(free // 4) for _ in range(3)]
    with pytest.raises(farpool.PoolFull) as caught:
        mapped.allocate(free // 2)
    assert caught.value.details["free"] < free // 2 <= caught.value.details["asked"]
    for slab in slabs:
        slab.write(b"\xff" * 4096, slab.nbytes - 4096)
    mapped.free_many(slabs)
    mapped.allocate(free // 2)
