"""Grants: who finds, attaches and frees whose slab, for how long, and what is left of it after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.conftest import settle

from farpool.protocol.errors import InvalidArgument, PermissionDenied, SlabNotFound, StaleSlab
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Commit,
    Committed,
    Done,
    DraftEnd,
    Free,
    Grant,
    GrantInfo,
    GrantList,
    Grants,
    Hello,
    Listing,
    Open,
    Reserve,
    Revoke,
    SlabInfo,
    SlabList,
    TenantAdd,
    TenantRemove,
    Wait,
    Welcome,
    Word,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]


@pytest.fixture
def server(audit: Path) -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB", audit_log=str(audit), resume_grace=60) as running:
        yield running


@pytest.fixture
def administrator(server: EmbeddedServer, connect: Connect) -> Any:
    client = connect(server.url)
    for name in ("owner", "second", "reader"):
        client.ask(TenantAdd(tenant=name), Done)
    return client


@pytest.fixture
def open_as(server: EmbeddedServer, connect: Connect, administrator: Any) -> Callable[[str], Any]:
    def open_as(tenant: str) -> Any:
        client = connect(server.tcp_url, hello=False)
        client.welcome = client.ask(Hello(protocol=1, client="raw", tenant=tenant), Welcome)
        return client

    return open_as


@pytest.fixture
def owner(open_as: Callable[[str], Any]) -> Any:
    return open_as("owner")


@pytest.fixture
def reader(open_as: Callable[[str], Any]) -> Any:
    return open_as("reader")


def made(client: Any, name: str | None = "weights", **options: Any) -> SlabInfo:
    slab = client.ask(Allocate(nbytes=4096, name=name, **options), Attached).slab
    assert isinstance(slab, SlabInfo)
    return slab


def grant(client: Any, slab: SlabInfo, tenant: str = "reader", **options: Any) -> None:
    client.ask(Grant(id=slab.id, generation=slab.generation, tenant=tenant, **options), Done)


def revoke(client: Any, slab: SlabInfo, tenant: str = "reader") -> None:
    client.ask(Revoke(id=slab.id, generation=slab.generation, tenant=tenant), Done)


def grants_of(client: Any, slab: SlabInfo) -> list[GrantInfo]:
    found = client.ask(Grants(id=slab.id, generation=slab.generation), GrantList).grants
    assert isinstance(found, list)
    return cast("list[GrantInfo]", found)


def listed(client: Any) -> list[int]:
    found: list[SlabInfo] = client.ask(Listing(), SlabList).slabs
    return [slab.id for slab in found]


def test_what_is_not_granted_looks_like_what_is_not_there(owner: Any, reader: Any) -> None:
    slab = made(owner)
    unknown: list[list[str]] = []
    for number in (slab.id, slab.id + 1):
        with pytest.raises(SlabNotFound) as found:
            reader.ask(Open(id=number), Attached)
        with pytest.raises(StaleSlab) as stale:
            reader.ask(Free(id=number, generation=99), Done)
        unknown.append([str(error.value).replace(f"slab {number}", "slab N") for error in (found, stale)])
    assert unknown[0] == unknown[1]
    with pytest.raises(SlabNotFound):
        reader.ask(Open(name="weights", tenant="owner"), Attached)
    for request in (
        Grant(id=slab.id, generation=slab.generation, tenant="second"),
        Revoke(id=slab.id, generation=slab.generation, tenant="second"),
        Grants(id=slab.id, generation=slab.generation),
        Attach(id=slab.id, generation=slab.generation, transport="tcp"),
        Reserve(id=slab.id, generation=slab.generation, transport="tcp"),
    ):
        with pytest.raises(StaleSlab):
            reader.ask(request, Done)
    assert listed(reader) == []


def test_a_reader_finds_and_reads_and_no_more(owner: Any, reader: Any, audit: Path) -> None:
    slab = made(owner)
    grant(owner, slab)
    assert grants_of(owner, slab) == [GrantInfo(tenant="reader", mode="r")]
    assert listed(reader) == [slab.id]
    for request in (
        Open(name="weights", mode="r", transport="tcp"),
        Open(name="weights", mode="r", transport="tcp", tenant="owner"),
        Open(id=slab.id, mode="r", transport="tcp"),
        Attach(id=slab.id, generation=slab.generation, mode="r", transport="tcp"),
    ):
        assert reader.ask(request, Attached).slab.tenant == "owner"
    for refused in (
        Open(name="weights", mode="rw", transport="tcp"),
        Open(name="weights", mode="r", transport="tcp", exclusive=True),
        Attach(id=slab.id, generation=slab.generation, mode="rw", transport="tcp"),
        Reserve(id=slab.id, generation=slab.generation, transport="tcp"),
        Free(id=slab.id, generation=slab.generation),
        Grant(id=slab.id, generation=slab.generation, tenant="second"),
        Revoke(id=slab.id, generation=slab.generation, tenant="reader"),
        Grants(id=slab.id, generation=slab.generation),
    ):
        with pytest.raises(PermissionDenied):
            reader.ask(refused, Done)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert ("grant", "done") in {(line["act"], line["outcome"]) for line in lines}
    assert ("free", "refused") in {(line["act"], line["outcome"]) for line in lines}


def test_a_writer_commits_and_the_slab_stays_its_owners(owner: Any, reader: Any) -> None:
    slab = made(owner)
    grant(owner, slab, mode="rw")
    draft = reader.ask(Reserve(id=slab.id, generation=slab.generation, transport="tcp"), Attached).slab
    assert draft.tenant == "reader"
    end = DraftEnd(id=draft.id, generation=draft.generation, detached="tcp", checksum=False)
    (committed,) = reader.ask(Commit(drafts=[end]), Committed).slabs
    assert (committed.id, committed.tenant, committed.commits) == (slab.id, "owner", 1)
    late = reader.ask(Reserve(id=slab.id, generation=slab.generation, transport="tcp"), Attached).slab
    revoke(owner, slab)
    with pytest.raises(StaleSlab):
        reader.ask(Commit(drafts=[DraftEnd(id=late.id, generation=late.generation, checksum=False)]), Committed)


def test_names_of_several_tenants(owner: Any, reader: Any, open_as: Callable[[str], Any]) -> None:
    second = open_as("second")
    theirs = {client: made(client) for client in (owner, second)}
    for client, slab in theirs.items():
        grant(client, slab)
    with pytest.raises(InvalidArgument, match="owner, second; say whose"):
        reader.ask(Open(name="weights", mode="r"), Attached)
    assert reader.ask(Open(name="weights", mode="r", tenant="second"), Attached).slab.id == theirs[second].id
    mine = made(reader)
    assert reader.ask(Open(name="weights"), Attached).slab.id == mine.id
    assert reader.ask(Open(name="weights", mode="r", tenant="owner"), Attached).slab.id == theirs[owner].id
    assert reader.ask(Open(name="weights", tenant="reader"), Attached).slab.id == mine.id


def test_a_revoked_session_is_told_and_its_handle_is_void(owner: Any, reader: Any) -> None:
    slab = made(owner, transport="tcp")
    grant(owner, slab)
    reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached)
    revoke(owner, slab)
    assert reader.event() == ("revoked", {"id": slab.id, "generation": slab.generation})
    with pytest.raises(StaleSlab):
        reader.ask(Attach(id=slab.id, generation=slab.generation, mode="r", transport="tcp"), Attached)
    assert owner.ask(Open(id=slab.id, transport="tcp"), Attached).slab.memory_generation == slab.generation
    revoke(owner, slab)
    revoke(owner, slab, "nobody")


def test_a_revoked_session_waits_no_more(owner: Any, reader: Any) -> None:
    slab = made(owner)
    grant(owner, slab)
    waiting = reader.send(Wait(id=slab.id, generation=slab.generation, offset=0, expected=0, seconds=30.0))
    revoke(owner, slab)
    with pytest.raises(StaleSlab):
        reader.answer(waiting, Word)
    with pytest.raises(StaleSlab):
        reader.ask(Wait(id=slab.id, generation=slab.generation, offset=0, expected=1, seconds=1.0), Word)


def test_memory_that_a_revoked_tenant_had_mapped_is_the_slabs_no_more(owner: Any, reader: Any) -> None:
    slab = made(owner)
    grant(owner, slab)
    reader.ask(Open(id=slab.id, mode="r", transport="cxl"), Attached)
    revoke(owner, slab)
    moved = owner.ask(Open(id=slab.id), Attached).slab
    assert moved.generation == slab.generation
    assert moved.memory_generation != slab.generation
    grant(owner, slab)
    revoke(owner, slab)
    assert owner.ask(Open(id=slab.id), Attached).slab.memory_generation == moved.memory_generation


def test_a_narrower_grant_takes_the_wider_away(owner: Any, reader: Any) -> None:
    slab = made(owner)
    grant(owner, slab, mode="rw")
    reader.ask(Open(id=slab.id, transport="tcp"), Attached)
    grant(owner, slab, mode="r")
    assert reader.event()[0] == "revoked"
    with pytest.raises(PermissionDenied):
        reader.ask(Attach(id=slab.id, generation=slab.generation, transport="tcp"), Attached)
    reader.ask(Attach(id=slab.id, generation=slab.generation, mode="r", transport="tcp"), Attached)


def test_a_grant_ends_by_itself(owner: Any, reader: Any) -> None:
    slab = made(owner)
    grant(owner, slab, expires=0.3)
    reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached)
    (info,) = grants_of(owner, slab)
    assert info.expires_in is not None
    assert reader.event()[0] == "revoked"
    assert grants_of(owner, slab) == []
    with pytest.raises(SlabNotFound):
        reader.ask(Open(id=slab.id, mode="r"), Attached)


@pytest.mark.parametrize("tenant", ["owner", "nobody", "a/b"])
def test_grants_that_cannot_be(owner: Any, tenant: str) -> None:
    slab = made(owner)
    with pytest.raises(InvalidArgument):
        grant(owner, slab, tenant)
    with pytest.raises(InvalidArgument):
        grant(owner, slab, mode="w")
    for seconds in (0.0, -1.0):
        with pytest.raises(InvalidArgument):
            grant(owner, slab, expires=seconds)


def test_grants_survive_a_restart_and_end_with_the_slab(
    server: EmbeddedServer, owner: Any, reader: Any, connect: Connect, open_as: Callable[[str], Any]
) -> None:
    slab = made(owner, lease="persistent")
    grant(owner, slab, expires=3600.0)
    server.kill()
    server.restart()
    reader, owner = open_as("reader"), open_as("owner")
    assert reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached).slab.id == slab.id
    (info,) = grants_of(owner, slab)
    assert info.expires_in is not None
    assert 3000 < info.expires_in < 3600
    owner.ask(Free(id=slab.id, generation=slab.generation), Done)
    assert listed(reader) == []
    with pytest.raises(SlabNotFound):
        reader.ask(Open(id=slab.id, mode="r"), Attached)


def test_a_removed_tenant_leaves_no_grant(owner: Any, reader: Any, administrator: Any) -> None:
    slab = made(owner)
    grant(owner, slab)
    reader.ask(Open(id=slab.id, mode="r", transport="cxl"), Attached)
    administrator.ask(TenantRemove(tenant="reader", force=True), Done)
    assert grants_of(owner, slab) == []

    def unmoved() -> set[int]:
        return {owner.ask(Open(id=slab.id), Attached).slab.memory_generation} & {slab.generation}

    assert not settle(unmoved, set())
