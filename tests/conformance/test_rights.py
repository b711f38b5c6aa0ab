"""A read-only handle reads and nothing else; a writable one of the same session beside it goes on writing."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.driving import AnyPool, AnySlab


@pytest.fixture
def reader(pool: AnyPool, other: AnyPool) -> AnySlab:
    """A read-only handle of another session's slab, which holds ``data``."""
    slab = other.allocate(4096, name="read only", lease="session")
    slab.write(b"data")
    return pool.open("read only", mode="r")


def writes(slab: AnySlab) -> list[Callable[[], object]]:
    return [
        lambda: slab.write(b"x"),
        lambda: slab.write(b""),
        lambda: slab.write(bytes(4096)),
        lambda: slab.writev([(0, b"x"), (8, b"y")]),
        lambda: slab.writev([]),
        lambda: slab.scatter(array("q", [0, 8]), 1, b"xy"),
        lambda: slab.scatter(array("q"), 1, b""),
        lambda: slab.store(0, 1),
        lambda: slab.fetch_add(0, 1),
        lambda: slab.fetch_add(0, 0),
        lambda: slab.compare_swap(0, 5, 1),
    ]


def check_read_only(slab: AnySlab) -> None:
    for call in writes(slab):
        with pytest.raises(farpool.ReadOnly) as caught:
            call()
        assert isinstance(caught.value, PermissionError)


def test_reads_and_nothing_else(reader: AnySlab, other: AnyPool) -> None:
    assert reader.mode == "r"
    check_read_only(reader)
    buffer = bytearray(4)
    assert reader.read_into(buffer) == 4
    assert reader.readv([(0, buffer), (4, bytearray(8))]) == 12
    assert buffer == reader.read(4) == b"data"
    buffer = bytearray(4)
    assert reader.gather(array("q", [0, 2]), 2, buffer) == 4
    assert buffer == b"data"
    assert reader.load(0) == int.from_bytes(b"data", "little")
    reader.flush()
    reader.invalidate()
    assert other.open("read only").read(4096) == b"data" + bytes(4092)


def test_view_is_read_only(reader: AnySlab) -> None:
    with suppress(farpool.NotMappable):
        with reader.view() as view:
            assert view.readonly
            with pytest.raises(TypeError):
                view[0] = 1
        array = reader.array("u1", 4)
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        del array
    assert reader.read(4) == b"data"


@pytest.mark.parametrize("order", ["reader first", "writer first"])
def test_both_modes_in_one_session(pool: AnyPool, other: AnyPool, order: str) -> None:
    other.allocate(4096, name="both").write(b"data")
    modes = ("r", "rw") if order == "reader first" else ("rw", "r")
    handles = {mode: pool.open("both", mode=mode) for mode in modes}
    check_read_only(handles["r"])
    assert handles["rw"].write(b"more") == 4
    assert handles["rw"].fetch_add(8, 1) == 0
    assert handles["r"].read(4) == b"more"
    check_read_only(handles["r"])
    handles["rw"].close()
    assert handles["r"].read(4) == b"more"
    check_read_only(handles["r"])
    assert pool.open("both").write(b"last") == 4
    assert handles["r"].read(4) == b"last"


def test_reader_closed_spares_the_writer(pool: AnyPool) -> None:
    slab = pool.allocate(4096, name="spared")
    pool.open("spared", mode="r").close()
    assert slab.write(b"data") == 4
    assert slab.fetch_add(8, 2) == 0


def test_reader_frees_nothing(reader: AnySlab, pool: AnyPool, other: AnyPool) -> None:
    """A handle's rights cover the slab's life as well; another handle of the session may end it."""
    with pytest.raises(farpool.ReadOnly, match="to free it"):
        reader.free()
    pool.open("read only").free()
    with pytest.raises(farpool.SlabNotFound):
        other.open("read only")
