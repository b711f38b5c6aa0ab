"""Memory itself where it can be shown, a clear refusal where it can't; flush and invalidate everywhere."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.driving import AnyPool, AnySlab

OURS = {"cxl": True, "tcp": False, "stream": False}


@pytest.fixture
def shown(slab: AnySlab, needs_views: None) -> AnySlab:
    """A slab whose memory can be shown."""
    return slab


def test_shown_or_refused(slab: AnySlab, mapped: bool, transport: str) -> None:
    assert mapped == OURS.get(transport, mapped)
    if mapped:
        with slab.view() as view:
            assert view.nbytes == slab.nbytes
        return
    for call in (slab.view, lambda: slab.view(8, 8), lambda: slab.view(8, 0), lambda: slab.array("f4", 4)):
        with pytest.raises(farpool.NotMappable) as caught:
            call()
        assert isinstance(caught.value, BufferError)
        assert "cxl" in str(caught.value), "the message says what would help"


def test_flush_and_invalidate(slab: AnySlab) -> None:
    slab.write(b"data")
    for call in (slab.flush, slab.invalidate):
        call()
        call(4)
        call(0, 4)
        call(slab.nbytes, 0)
        call(offset=8, nbytes=None)
    assert slab.read(4) == b"data"
    slab.close()
    with pytest.raises(farpool.StaleSlab):
        slab.flush()
    with pytest.raises(farpool.StaleSlab):
        slab.invalidate()


def test_view_is_the_memory(shown: AnySlab) -> None:
    shown.write(b"data", 100)
    with shown.view() as whole, shown.view(100, 4) as part, shown.view(4096) as empty:
        assert bytes(part) == b"data"
        assert len(empty) == 0
        assert not whole.readonly
        whole[100:104] = b"more"
        assert bytes(part) == b"more"
        assert shown.read(4, 100) == b"more"
        shown.store(8, 7)
        assert whole[8:16].cast("Q")[0] == 7


def test_array_is_the_memory(shown: AnySlab) -> None:
    array = shown.array("f4", (10, 10), offset=96)
    array[:] = np.arange(100).reshape(10, 10)
    assert np.frombuffer(shown.read(400, 96), "f4").tolist() == list(range(100))
    assert shown.array("f4", 0, offset=4096).size == 0
    for shape, offset in (((1025,), 0), ((4,), 4090), ((1,), -4)):
        with pytest.raises(farpool.OutOfBounds):
            shown.array("f4", shape, offset)


def test_no_close_under_a_view(shown: AnySlab, pool: AnyPool) -> None:
    array = shown.array("u1", 8)
    with shown.view() as view:
        for call in (shown.close, shown.free):
            with pytest.raises(farpool.RegionInUse, match="array"):
                call()
        view[0] = 5
    with pytest.raises(farpool.RegionInUse):
        shown.close()
    assert array[0] == 5
    assert shown.read(1) == b"\x05"
    assert pool.open(shown.id).read(1) == b"\x05"
    del array
    gc.collect()
    shown.close()


def test_view_outlives_the_slab(shown: AnySlab, other: AnyPool) -> None:
    """Another session frees it: the memory stays what it was for whoever looks, and is nobody else's."""
    shown.write(b"data")
    view, array = shown.view(), shown.array("u1", 4)
    other.open(shown.id).free()
    with pytest.raises(farpool.StaleSlab):
        shown.read(4)
    fresh = other.allocate(shown.nbytes)
    fresh.write(b"\xff" * fresh.nbytes)
    assert bytes(view[:4]) == array.tobytes() == b"data"
    view[:4] = b"mine"
    assert fresh.read(4096) == b"\xff" * 4096
    view.release()


@pytest.mark.usefixtures("needs_views")
def test_view_outlives_the_pool(pool: AnyPool, other: AnyPool) -> None:
    """The view goes on; the handle doesn't, though the slab lives and its memory is still mapped."""
    slab = pool.allocate(4096, lease="persistent")
    twin = other.open(slab.id)
    try:
        array = slab.array("u1", 4)
        array[:] = 3
        slab.flush()
        pool.close()
        assert array.tolist() == [3] * 4
        assert twin.read(4) == b"\x03" * 4
        for call in (lambda: slab.read(1), lambda: slab.write(b"x"), lambda: slab.load(0), slab.view):
            with pytest.raises(farpool.StaleSlab):
                call()
        array[:] = 4
        assert array.tolist() == [4] * 4
    finally:
        twin.free()


def test_bytes_of_a_freed_slab_are_given_back_when_the_view_goes(shown: AnySlab, pool: AnyPool, other: AnyPool) -> None:
    array = shown.array("u1", 4)
    before = other.stat()
    other.open(shown.id).free()
    assert other.stat().reclaiming >= shown.nbytes
    assert pool.stat().free < before.free + shown.nbytes  # of earlier tests something may come back meanwhile
    del array
    gc.collect()
    pool.stat()
    shown.close()
    pool.stat()
    # A device's extents wait for more: of a pool that was closed before its views, for the end of the process.
    assert other.stat().reclaiming <= before.reclaiming
    assert other.stat().free > before.free
