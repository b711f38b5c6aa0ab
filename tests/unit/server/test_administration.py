"""Who may ask for administrative acts, what they do, and what the audit log keeps of it all."""

from __future__ import annotations

import json
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import settle

from farpool.protocol.errors import AuthenticationFailed, InvalidArgument, NameTaken, PermissionDenied, StaleSlab
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Done,
    Hello,
    Listing,
    ResumeKey,
    ServerStat,
    SlabList,
    Stat,
    TenantAdd,
    TenantInfo,
    TenantList,
    TenantListing,
    TenantRemove,
    TenantRotate,
    Welcome,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]
VERIFIER = secrets.token_bytes(64)


@pytest.fixture
def server(audit: Path) -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB", audit_log=str(audit)) as running:
        yield running


def listed(client: Any, name: str) -> TenantInfo | None:
    page = client.ask(TenantListing(), TenantList)
    return next((info for info in page.tenants if info.name == name), None)


def lines_of(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in audit.read_text().splitlines()]


def wait_until(true: Callable[[], bool], what: str) -> None:
    assert not settle(lambda: set() if true() else {what}, set(), 20.0), f"this has not come true: {what}"


def open_as(connect: Connect, url: str, tenant: str) -> Any:
    client = connect(url, hello=False)
    client.welcome = client.ask(Hello(protocol=1, client="raw", tenant=tenant), Welcome)
    return client


@pytest.mark.parametrize(
    "request_",
    [TenantAdd(tenant="x"), TenantListing(), TenantRotate(tenant="x", verifier=VERIFIER), TenantRemove(tenant="x")],
    ids=lambda request: request.operation,
)
def test_others_than_administrators_are_refused(
    server: EmbeddedServer, connect: Connect, audit: Path, request_: Any
) -> None:
    stranger = connect(server.tcp_url)
    with pytest.raises(PermissionDenied, match=r"is for administrators: .* over unix://"):
        stranger.ask(request_, Done)
    (line,) = lines_of(audit)
    assert (line["act"], line["outcome"], line["error"]) == (request_.operation, "refused", "PermissionDenied")
    assert (line["uid"], line["tenant"], line["session"]) == (None, "default", stranger.welcome.session)
    assert line["administrator"] is False


def test_a_session_is_an_administrators_only_over_its_own_connection(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    assert listed(client, "default") is not None
    again = connect(server.tcp_url, resume=client.key)
    with pytest.raises(PermissionDenied):
        again.ask(TenantListing(), TenantList)


def test_tenants_come_change_and_go(server: EmbeddedServer, connect: Connect, audit: Path) -> None:
    client = connect(server.url)
    client.ask(TenantAdd(tenant="alice"), Done)
    client.ask(TenantAdd(tenant="bob", verifier=VERIFIER), Done)
    with pytest.raises(NameTaken):
        client.ask(TenantAdd(tenant="bob"), Done)
    assert listed(client, "alice") == TenantInfo(name="alice", token=False)
    client.ask(TenantRotate(tenant="alice", verifier=VERIFIER), Done)
    server.restart()
    client = connect(server.url)
    assert listed(client, "alice") == TenantInfo(name="alice", token=True)
    client.ask(TenantRemove(tenant="alice"), Done)
    assert listed(client, "alice") is None
    acts = [(line["act"], line["object"].get("tenant"), line["outcome"]) for line in lines_of(audit)]
    assert acts[:3] == [("tenant_add", "alice", "done"), ("tenant_add", "bob", "done"), ("tenant_add", "bob", "failed")]
    assert ("tenant_rotate", "alice", "done") in acts
    assert acts[-2][:2] == ("tenant_remove", "alice")
    assert {(line["uid"], line["pid"]) for line in lines_of(audit)} == {(os.getuid(), os.getpid())}
    assert not any(part in audit.read_text() for part in (VERIFIER.hex(), "verifier"))


def test_a_tenant_that_is_used_goes_by_force_alone(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    client.ask(TenantAdd(tenant="alice"), Done)
    user = open_as(connect, server.tcp_url, "alice")
    kept = user.ask(Allocate(nbytes=20 << 20, lease="persistent", transport="tcp"), Attached).slab
    small = user.ask(Allocate(nbytes=4096), Attached).slab
    info = listed(client, "alice")
    assert info is not None
    assert (info.sessions, info.slabs, info.nbytes) == (1, 2, (20 << 20) + 4096)
    with pytest.raises(PermissionDenied, match="2 slabs and 1 sessions"):
        client.ask(TenantRemove(tenant="alice"), Done)
    client.ask(TenantRemove(tenant="alice", force=True), Done)
    user.wait_for_end()
    assert listed(client, "alice") is None
    with pytest.raises(PermissionDenied, match='no tenant "alice"'):
        open_as(connect, server.tcp_url, "alice")
    with pytest.raises(AuthenticationFailed):
        connect(server.tcp_url, resume=user.key)
    client.ask(TenantAdd(tenant="alice"), Done)
    anew = open_as(connect, server.tcp_url, "alice")
    for slab in (kept, small):
        with pytest.raises(StaleSlab):
            anew.ask(Attach(id=slab.id, generation=slab.generation, transport="tcp"), Attached)
    assert not list(Path(server.arena).glob("slab-*"))


def test_slabs_that_are_being_made_go_with_their_tenant(connect: Connect) -> None:
    with serve_embedded(capacity="1GiB") as server:
        client = connect(server.url)
        client.ask(TenantAdd(tenant="bob"), Done)
        bob = connect(server.tcp_url, tenant="bob")
        small = bob.ask(Allocate(nbytes=4096, name="secret", lease="persistent"), Attached).slab
        for number in range(6):
            bob.send(Allocate(nbytes=100 << 20, name=f"big-{number}", lease="persistent"))
        wait_until(lambda: client.ask(Stat(), ServerStat).allocated == 4096 + (600 << 20), "all are under way")
        client.ask(TenantRemove(tenant="bob", force=True), Done)
        assert listed(client, "bob") is None
        client.ask(TenantAdd(tenant="bob"), Done)
        anew = connect(server.tcp_url, tenant="bob")
        assert anew.ask(Listing(), SlabList).slabs == []
        anew.ask(Allocate(nbytes=4096, name="secret"), Attached)
        wait_until(lambda: client.ask(Stat(), ServerStat).allocated == 4096, "all were abandoned")
        with pytest.raises(StaleSlab):
            anew.ask(Attach(id=small.id, generation=small.generation, transport="tcp"), Attached)


def test_a_crash_leaves_no_slab_to_the_next_tenant_of_that_name(connect: Connect) -> None:
    with serve_embedded(capacity="1GiB") as server:
        client = connect(server.url)
        client.ask(TenantAdd(tenant="bob"), Done)
        bob = connect(server.tcp_url, tenant="bob")
        for number in range(6):
            bob.ask(Allocate(nbytes=100 << 20, name=f"big-{number}", lease="persistent"), Attached)
        client.send(TenantRemove(tenant="bob", force=True))
        client.send(Stat())
        client.receive()  # the removal of the files takes longer
        server.kill()
        server.restart()
        client = connect(server.url)
        client.ask(TenantAdd(tenant="bob"), Done)
        assert connect(server.tcp_url, tenant="bob").ask(Listing(), SlabList).slabs == []
        assert client.ask(Stat(), ServerStat).allocated == 0


def test_rotating_ends_the_sessions_that_it_is_told_to(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    client.ask(TenantAdd(tenant="alice"), Done)
    user = open_as(connect, server.tcp_url, "alice")
    client.ask(TenantRotate(tenant="alice", verifier=VERIFIER), Done)
    user.ask(Allocate(nbytes=4096), Attached)
    client.ask(TenantRotate(tenant="alice", verifier=VERIFIER, end_sessions=True), Done)
    user.wait_for_end()
    with pytest.raises(PermissionDenied, match='no tenant "alice" that is open'):
        open_as(connect, server.tcp_url, "alice")


def test_the_configurations_tenants_stay(connect: Connect) -> None:
    with serve_embedded(tenants={"alice": {"uids": [4711]}}) as server:
        client = connect(server.url)
        assert listed(client, "alice") == TenantInfo(name="alice", token=False, uids=[4711])
        with pytest.raises(PermissionDenied, match=r"\[tenants.alice\]"):
            client.ask(TenantRemove(tenant="alice", force=True), Done)
        with pytest.raises(PermissionDenied, match='the tenant "default" stays'):
            client.ask(TenantRemove(tenant="default"), Done)
        with pytest.raises(InvalidArgument, match="no tenant 'bob'"):
            client.ask(TenantRemove(tenant="bob"), Done)


def test_refusals_at_the_door_are_noted_without_their_secrets(
    server: EmbeddedServer, connect: Connect, audit: Path
) -> None:
    secret = secrets.token_bytes(32)
    client = connect(server.tcp_url, hello=False)
    with pytest.raises(AuthenticationFailed):
        client.ask(Hello(protocol=1, client="thief", resume=ResumeKey(session=1 << 40, secret=secret)), Welcome)
    (line,) = lines_of(audit)
    assert (line["act"], line["error"], line["session"]) == ("hello", "AuthenticationFailed", None)
    assert line["address"] == "{}:{}".format(*client.socket.getsockname())
    assert secret.hex() not in audit.read_text()


def test_the_audit_log_is_its_owners_and_opened_again(server: EmbeddedServer, connect: Connect, audit: Path) -> None:
    client = connect(server.url)
    client.ask(TenantAdd(tenant="alice"), Done)
    assert audit.stat().st_mode & 0o777 == 0o600
    moved = audit.with_suffix(".1")
    audit.rename(moved)
    os.kill(server.pid, signal.SIGHUP)
    assert not settle(lambda: set() if audit.exists() else {"the audit log"}, set(), 20.0)
    client.ask(TenantAdd(tenant="bob"), Done)
    assert lines_of(audit)[0]["act"] == "reload"
    assert [line["object"] for line in lines_of(moved) if line["act"] == "tenant_add"] == [{"tenant": "alice"}]
    assert [line["object"] for line in lines_of(audit) if line["act"] == "tenant_add"] == [{"tenant": "bob"}]


def test_a_flood_of_refusals_is_counted(server: EmbeddedServer, connect: Connect, audit: Path) -> None:
    stranger = connect(server.tcp_url)
    for _ in range(2000):
        stranger.socket.settimeout(20)
        with pytest.raises(PermissionDenied):
            stranger.ask(TenantListing(), TenantList)
    connect(server.url).ask(TenantAdd(tenant="alice"), Done)
    lines = lines_of(audit)
    assert len(lines) < 2001
    assert sum(line.get("suppressed", 0) for line in lines) + len(lines) == 2001


def test_what_the_file_has_no_room_for_is_in_the_servers_log(connect: Connect) -> None:
    with serve_embedded(audit_log="/dev/full") as server:
        client = connect(server.url)
        for name in ("alice", "bob"):
            client.ask(TenantAdd(tenant=name), Done)
        lines = [json.loads(line) for line in server.log().splitlines()]
    assert [line["error"] for line in lines if "cannot be written" in line["event"]] == ["No space left on device"]
    kept = [json.loads(line["line"]) for line in lines if line["event"] == "audit"]
    assert [line["object"]["tenant"] for line in kept] == ["alice", "bob"]


def test_without_a_file_the_servers_log_has_it(connect: Connect) -> None:
    with serve_embedded() as server:
        connect(server.url).ask(TenantAdd(tenant="alice"), Done)
        lines = [json.loads(line) for line in server.log().splitlines()]
    (line,) = [line for line in lines if line["event"] == "audit"]
    assert (line["act"], line["object"], line["outcome"]) == ("tenant_add", {"tenant": "alice"}, "done")
