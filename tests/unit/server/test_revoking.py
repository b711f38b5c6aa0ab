"""Grants that end while something is under way: what was begun by them comes to nothing, also after a crash."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import settle

import farpool
from farpool.protocol.errors import FarpoolError, InvalidArgument, SlabNotFound, StaleSlab
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Commit,
    Committed,
    Detach,
    Done,
    DraftEnd,
    Grant,
    Open,
    Reserve,
    Revoke,
    ServerStat,
    SlabInfo,
    Stat,
    TenantAdd,
    TenantRemove,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]

MIB = 1 << 20
LONG = 48 * MIB
"""Long enough to be made and copied in one of the server's two threads."""


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="512MiB", resume_grace=60, session_timeout=300) as running:
        yield running


@pytest.fixture
def tenants(server: EmbeddedServer, connect: Connect) -> None:
    for name in ("owner", "reader"):
        connect(server.url).ask(TenantAdd(tenant=name), Done)


@pytest.fixture
def owner(server: EmbeddedServer, connect: Connect, tenants: None) -> Any:
    return connect(server.tcp_url, tenant="owner")


def made(client: Any, nbytes: int = 4096, **options: Any) -> SlabInfo:
    slab = client.ask(Allocate(nbytes=nbytes, name="weights", lease="persistent", **options), Attached).slab
    assert isinstance(slab, SlabInfo)
    return slab


def grant(client: Any, slab: SlabInfo, mode: str = "rw") -> None:
    client.ask(Grant(id=slab.id, generation=slab.generation, tenant="reader", mode=mode), Done)


def revoke(client: Any, slab: SlabInfo) -> None:
    client.ask(Revoke(id=slab.id, generation=slab.generation, tenant="reader"), Done)


def commit(client: Any, draft: SlabInfo, detached: str = "tcp") -> None:
    end = DraftEnd(id=draft.id, generation=draft.generation, detached=detached, checksum=False)
    client.ask(Commit(drafts=[end]), Committed)


def wait_until(true: Callable[[], bool], what: str) -> None:
    assert not settle(lambda: set() if true() else {what}, set(), 20.0), f"this has not come true: {what}"


def wait_for_allocated(client: Any, nbytes: int) -> None:
    wait_until(lambda: client.ask(Stat(), ServerStat).allocated == nbytes, f"{nbytes} bytes are allocated")


def memory_of(client: Any, slab: SlabInfo) -> int:
    info = client.ask(Open(id=slab.id), Attached).slab
    assert isinstance(info, SlabInfo)
    return info.memory_generation


def alter_catalog(server: EmbeddedServer, statement: str) -> None:
    """Change the catalog of a server that does not run."""
    with closing(sqlite3.connect(Path(server.arena, ".farpool", "catalog.sqlite"))) as catalog, catalog:
        catalog.execute(statement)


ENDINGS: dict[str, list[Callable[[Any, SlabInfo], None]]] = {
    "revoked": [revoke],
    "narrowed": [lambda owner, slab: grant(owner, slab, "r")],
    "revoked and granted again": [revoke, grant],
}


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "empty"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_draft_that_is_being_made_comes_to_nothing(
    server: EmbeddedServer, connect: Connect, owner: Any, ending: str, copy: bool
) -> None:
    slab = made(owner, LONG)
    grant(owner, slab)
    readers = [connect(server.tcp_url, tenant="reader") for _ in range(4)]
    reserve = Reserve(id=slab.id, generation=slab.generation, transport="tcp", copy=copy)
    waiting = [(reader, reader.send(reserve)) for reader in readers]
    wait_for_allocated(owner, 5 * LONG)  # all are under way, two of them behind the others
    for step in ENDINGS[ending]:
        step(owner, slab)
    for reader, number in waiting:
        with pytest.raises(StaleSlab):  # at the latest when it commits what was made before
            commit(reader, reader.answer(number, Attached).slab)
    wait_for_allocated(owner, LONG)
    assert owner.ask(Open(id=slab.id), Attached).slab.commits == 0


def test_memory_that_was_a_draft_mapped_by_its_writer_is_the_slabs_no_more(
    server: EmbeddedServer, connect: Connect, owner: Any
) -> None:
    slab = made(owner)
    grant(owner, slab)
    reader = connect(server.tcp_url, tenant="reader")
    draft = reader.ask(Reserve(id=slab.id, generation=slab.generation, transport="tcp"), Attached).slab
    reader.ask(Attach(id=draft.id, generation=draft.generation, mode="rw", transport="cxl"), Attached)
    reader.ask(Detach(id=draft.id, generation=draft.generation, transport="tcp"), Done)
    commit(reader, draft, "cxl")  # but who says that it has let go of all its mappings?
    committed = owner.ask(Open(id=slab.id), Attached).slab.memory_generation
    revoke(owner, slab)
    assert owner.ask(Open(id=slab.id), Attached).slab.memory_generation != committed


def test_a_grant_is_not_the_next_tenants_of_that_name(server: EmbeddedServer, connect: Connect, owner: Any) -> None:
    slab = made(owner, 2 * LONG)
    grant(owner, slab)
    reader = connect(server.tcp_url, tenant="reader")
    reader.ask(Open(id=slab.id, mode="rw", transport="cxl"), Attached)
    administrator = connect(server.url)
    narrower = owner.send(Grant(id=slab.id, generation=slab.generation, tenant="reader", mode="r"))
    assert reader.event()[0] == "revoked"  # and now the slab moves
    administrator.ask(TenantRemove(tenant="reader", force=True), Done)
    administrator.ask(TenantAdd(tenant="reader"), Done)
    with suppress(InvalidArgument):  # unless the slab was quicker
        owner.answer(narrower, Done)
    with pytest.raises(SlabNotFound):
        connect(server.tcp_url, tenant="reader").ask(Open(id=slab.id, mode="r"), Attached)


def test_a_move_that_has_no_memory_disturbs_nobody(server: EmbeddedServer, connect: Connect, owner: Any) -> None:
    info = made(owner, LONG)
    grant(owner, info)
    connect(server.tcp_url, tenant="reader").ask(Open(id=info.id, mode="rw", transport="cxl"), Attached)
    limits = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    with farpool.connect(server.tcp_url, tenant="owner", transport="tcp") as pool:
        slab = pool.open(info.id)
        slab.write(b"go on")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (LONG // 2, limits[1]))
        with pytest.raises(InvalidArgument, match=r"the grant has ended, but .* cannot move to other memory yet"):
            slab.revoke("reader")
        assert slab.read(5) == b"go on"
        assert pool.stat().transports["tcp"]["errors"] == 0, "its region had to be made anew"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limits)
        wait_until(lambda: memory_of(owner, info) != info.generation, "it has moved by itself")
        assert slab.read(5) == b"go on"
    wait_for_allocated(owner, LONG)


def test_a_move_that_the_catalog_does_not_take_leaves_no_copy(
    server: EmbeddedServer, connect: Connect, owner: Any
) -> None:
    slab = made(owner)
    grant(owner, slab)
    reader = connect(server.tcp_url, tenant="reader")
    reader.ask(Open(id=slab.id, mode="rw", transport="cxl"), Attached)
    server.kill()
    alter_catalog(server, "CREATE TRIGGER full BEFORE UPDATE OF memory ON slabs BEGIN SELECT no_room(); END")
    server.restart()
    reader = connect(server.tcp_url, resume=reader.key)
    owner = connect(server.tcp_url, tenant="owner")
    with pytest.raises(FarpoolError, match="the catalog cannot be written"):
        revoke(owner, slab)
    wait_for_allocated(owner, 4096)
    wait_until(lambda: '"again_in": 4.0' in server.log(), "it was tried again, and will be later")
    wait_for_allocated(owner, 4096)
    assert memory_of(owner, slab) == slab.generation


def test_a_server_that_died_while_it_revoked_ends_what_was_begun(
    server: EmbeddedServer, connect: Connect, owner: Any
) -> None:
    slab = made(owner)
    grant(owner, slab)
    reader = connect(server.tcp_url, tenant="reader")
    opened = Open(id=slab.id, mode="rw", transport="cxl", exclusive=True)
    reader.ask(opened, Attached)
    draft = reader.ask(Reserve(id=slab.id, generation=slab.generation, transport="tcp"), Attached).slab
    server.kill()
    alter_catalog(server, "UPDATE grants SET mode = ''")  # the first that a revocation does, and the last that this did
    server.restart()
    reader = connect(server.tcp_url, resume=reader.key)
    with pytest.raises(StaleSlab):
        commit(reader, draft)
    owner = connect(server.tcp_url, tenant="owner")
    attached = owner.ask(Attach(id=slab.id, generation=slab.generation, mode="rw", transport="tcp"), Attached)
    assert (attached.slab.id, attached.slab.commits) == (slab.id, 0)
    wait_for_allocated(owner, 4096)
