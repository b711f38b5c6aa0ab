"""A session that ended while its client lives on: its handles are stale, whoever has their slabs by then."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import farpool
from farpool.client.administration import Administration, new_token
from farpool.protocol.credentials import format_token

if TYPE_CHECKING:
    from tests.conformance.conftest import Connect
    from tests.conformance.driving import AnyPool, AnySlab

    from farpool.server.embedded import EmbeddedServer

TENANT = "ours"

End = Callable[[], None]


@pytest.fixture
def end_sessions(own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[End]:
    """End every session of the tenant as its administrator may; its clients come back with the same token."""
    with farpool.connect(own_server.url) as pool:
        address = next(each for each in pool.stat().addresses if each.startswith("unix:"))
    token = new_token()
    with Administration(address, 30) as administration:
        administration.add_tenant(TENANT, token)
        monkeypatch.setenv("FARPOOL_TOKEN", format_token(token))
        yield lambda: administration.rotate_token(TENANT, token, end_sessions=True)


def reads(slab: AnySlab) -> list[Callable[[], object]]:
    return [
        lambda: slab.read(4),
        lambda: slab.read_into(bytearray(4)),
        lambda: slab.readv([(0, bytearray(4))]),
        lambda: slab.gather(array("q", [0, 2]), 2, bytearray(4)),
        lambda: slab.load(0),
        lambda: slab.wait(0, 1, timeout=1),
    ]


def writes(slab: AnySlab) -> list[Callable[[], object]]:
    return [
        lambda: slab.write(b"late"),
        lambda: slab.writev([(0, b"late")]),
        lambda: slab.scatter(array("q", [0, 2]), 2, b"late"),
        lambda: slab.store(0, 1),
        lambda: slab.fetch_add(0, 1),
        lambda: slab.compare_swap(0, 0, 1),
    ]


def questions(slab: AnySlab) -> list[Callable[[], object]]:
    return [lambda: slab.notify(0), slab.reserve, slab.grants, lambda: slab.revoke("default"), slab.free]


def check_stale(calls: list[Callable[[], object]]) -> None:
    for call in calls:
        with suppress(farpool.ServerLost, farpool.StaleSlab):  # it may be on its way when the connection is closed
            call()
        with pytest.raises(farpool.StaleSlab):
            call()


def leave(pool: AnyPool, name: str) -> None:
    pool.allocate(4096, name=name, lease="persistent").close()
    pool.stat()


def test_an_owner_has_its_slab_no_more(own_server: EmbeddedServer, connect: Connect, end_sessions: End) -> None:
    pool = connect(own_server.url, tenant=TENANT)
    session = pool.session_id
    leave(pool, "owned")
    late = pool.open("owned", exclusive=True)
    late.write(b"old")
    end_sessions()
    successor = connect(own_server.url, tenant=TENANT)
    mine = successor.open("owned", exclusive=True)
    mine.write(b"mine")
    check_stale([*writes(late), *reads(late)])
    assert not late.exclusive
    assert pool.session_id != session
    mine.close()
    successor.stat()
    check_stale([*reads(late), *writes(late), *questions(late)])
    again = pool.open("owned", exclusive=True)
    assert again.read(4) == b"mine"
    late.close()
    assert again.exclusive
    pool.stat()
    with pytest.raises(farpool.SlabBusy):
        successor.open("owned")
    again.close()
    pool.stat()
    successor.open("owned").free()


def test_nor_has_anybody_who_shared_one(own_server: EmbeddedServer, connect: Connect, end_sessions: End) -> None:
    """Even where nothing has happened to it since: who was away does not go on as if nothing had."""
    pool = connect(own_server.url, tenant=TENANT)
    for name in ("written", "committed"):
        leave(pool, name)
    written, reader = pool.open("written"), pool.open("written", mode="r")
    written.write(b"here")
    committed = pool.open("committed")
    with_draft = committed.reserve()
    with_draft.write(b"here")
    with_draft.commit()
    draft = committed.reserve()
    draft.write(b"late")
    end_sessions()
    pool.stat()
    check_stale([*reads(written), *writes(written), *reads(reader), *reads(committed), *questions(written)])
    check_stale([draft.commit, lambda: draft.write(b"late"), committed.reserve])
    for name in ("written", "committed"):
        again = pool.open(name)
        assert again.read(4) == b"here"
    again = pool.open("written")
    for handle in (written, reader, committed):
        handle.close()
    draft.close()
    again.write(b"goes")
    with pytest.raises(farpool.SlabBusy):
        connect(own_server.url, tenant=TENANT).open("written", exclusive=True)
    assert again.read(4) == b"goes"


@pytest.mark.usefixtures("needs_views")
def test_views_of_before_are_all_that_is_left(own_server: EmbeddedServer, connect: Connect, end_sessions: End) -> None:
    pool = connect(own_server.url, tenant=TENANT)
    leave(pool, "shown")
    late = pool.open("shown", exclusive=True)
    view = late.view()
    end_sessions()
    mine = connect(own_server.url, tenant=TENANT).open("shown", exclusive=True)
    mine.write(b"mine")
    view[:4] = b"late"
    check_stale([*writes(late), *reads(late), lambda: late.view(0, 8)])
    assert mine.read(4) == b"mine"
    late.close()
    assert bytes(view[:4]) == b"late"
    view.release()
