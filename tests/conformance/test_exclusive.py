"""A slab that one session has for itself; and what a stopped holder of before can still do to it, which is nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import farpool

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.conformance.driving import AnyPool

    from farpool.server.embedded import EmbeddedServer


def test_others_are_kept_out(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="mine")
    slab.close()
    mine = pool.open("mine", exclusive=True)
    assert mine.exclusive
    for mode in ("r", "rw"):
        with pytest.raises(farpool.SlabBusy, match="alone") as caught:
            other.open("mine", mode=mode)
        assert isinstance(caught.value, BlockingIOError)
    with pytest.raises(farpool.SlabBusy):
        other.open("mine", exclusive=True)
    assert pool.open("mine").write(b"ours") == 4
    assert mine.read(4) == b"ours"
    mine.close()
    pool.stat()  # behind the word that it was let go
    assert other.open("mine").read(4) == b"ours"
    other.open("mine").free()


def test_not_while_others_hold_it(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="shared")
    held = other.open("shared", mode="r")
    with pytest.raises(farpool.SlabBusy, match="1 other session"):
        pool.open("shared", exclusive=True)
    slab.write(b"data")
    assert held.read(4) == b"data", "a refusal changes nothing"
    held.close()
    other.stat()
    pool.open("shared", exclusive=True).close()
    pool.stat()
    assert other.open("shared").read(4) == b"data"
    slab.free()


def test_until_the_last_handle_that_has_it(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="twice")
    first, second = pool.open("twice", exclusive=True), pool.open("twice", exclusive=True)
    first.close()
    pool.stat()
    with pytest.raises(farpool.SlabBusy):
        other.open("twice")
    del second
    pool.stat()
    assert other.open("twice").nbytes == 4096
    slab.free()


def test_ends_with_the_session(connect: Connect, server: EmbeddedServer, pool: AnyPool) -> None:
    slab = pool.allocate(4096, name="session's")
    slab.close()
    owner = connect(server.url)
    owner.open("session's", exclusive=True)
    with pytest.raises(farpool.SlabBusy):
        pool.open("session's")
    owner.close()
    pool.open("session's").free()


def test_ends_with_the_slab(pool: AnyPool, other: AnyPool) -> None:
    pool.allocate(4096, name="freed").close()
    pool.open("freed", exclusive=True).free()
    with pytest.raises(farpool.SlabNotFound):
        other.open("freed")
    other.allocate(4096, name="freed").free()


def test_commits_of_others_are_kept_out_too(pool: AnyPool, other: AnyPool) -> None:
    slab = pool.allocate(4096, name="reserved")
    theirs = other.open("reserved")
    draft = theirs.reserve()
    theirs.close()
    other.stat()
    mine = pool.open("reserved", exclusive=True)
    with pytest.raises(farpool.SlabBusy):
        draft.commit()
    ours = mine.reserve()
    ours.write(b"ours")
    ours.commit()
    assert mine.read(4) == slab.read(4) == b"ours"
    draft.close()
    mine.close()
    slab.free()


def test_outlives_the_server(own_server: EmbeddedServer, connect: Connect) -> None:
    pool, other = connect(own_server.url), connect(own_server.url)
    pool.allocate(4096, name="kept", lease="persistent").close()
    mine = pool.open("kept", exclusive=True)
    mine.write(b"mine")
    own_server.kill()
    own_server.start()
    with pytest.raises(farpool.SlabBusy):
        other.open("kept")
    assert mine.read(4) == b"mine"
    assert pool.stat().slabs == 1, "and so the session goes on"
    mine.close()
    pool.stat()
    assert other.open("kept").read(4) == b"mine"
