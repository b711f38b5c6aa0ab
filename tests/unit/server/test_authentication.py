"""Who is let in as whom: tokens, users of the host, administrators; and that a stranger learns of no tenant."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.client.administration import Administration
from farpool.protocol.addresses import parse_address
from farpool.protocol.credentials import exchange_of, format_token, parse_token, proof_of
from farpool.protocol.errors import AuthenticationFailed, FarpoolError, PermissionDenied, ProtocolError, SlabNotFound
from farpool.protocol.messages import Challenge, Challenged, Hello, Welcome
from farpool.server.authentication import Authentication
from farpool.server.catalog import Catalog
from farpool.server.embedded import EmbeddedServer, serve_embedded
from farpool.server.peers import Peer
from farpool.server.settings import TenantSettings
from farpool.server.tenants import Tenants

Connect = Callable[..., Any]
NOBODY = 65534

AS_NOBODY = """
import json, os, sys
import farpool
with farpool.connect(sys.argv[2], transport="tcp"):
    pass  # all that is needed is imported: the other user may be unable to read this installation
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
said = []
for tenant in json.loads(sys.argv[3]):
    try:
        with farpool.connect(sys.argv[2], transport="tcp", tenant=tenant) as pool:
            said.append(pool.tenant)
    except farpool.FarpoolError as error:
        said.append(type(error).__name__)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server that lets in nobody whom it does not know."""
    with serve_embedded(authentication="required", capacity="64MiB", transports=["tcp"]) as running:
        yield running


@pytest.fixture(scope="module")
def tokens(server: EmbeddedServer) -> dict[str, str]:
    """Tenants of that server, and their tokens."""
    made = {name: secrets.token_bytes(32) for name in ("alice", "bob")}
    with Administration(server.url, 30.0) as administration:
        for name, token in made.items():
            administration.add_tenant(name, token)
        administration.add_tenant("open", None)
    return {name: format_token(token) for name, token in made.items()}


def test_a_token_opens_its_tenants_sessions_sync_and_awaited(server: EmbeddedServer, tokens: dict[str, str]) -> None:
    with farpool.connect(server.tcp_url, tenant="alice", token=tokens["alice"]) as pool:
        assert pool.tenant == "alice"
        pool.allocate(4096, name="mine", lease="persistent").close()

    async def awaited() -> str:
        async with farpool.aio.connect(server.tcp_url, tenant="alice", token=tokens["alice"]) as pool:
            async with await pool.open("mine") as slab:
                await slab.free()
            return pool.tenant

    assert asyncio.run(awaited()) == "alice"


def test_the_environment_does_too(
    server: EmbeddedServer, tokens: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARPOOL_TENANT", "bob")
    monkeypatch.setenv("FARPOOL_TOKEN", tokens["bob"])
    with farpool.connect(server.tcp_url) as pool:
        assert pool.tenant == "bob"


def test_tenants_do_not_see_each_others_slabs(server: EmbeddedServer, tokens: dict[str, str]) -> None:
    with (
        farpool.connect(server.tcp_url, tenant="alice", token=tokens["alice"]) as alice,
        farpool.connect(server.tcp_url, tenant="bob", token=tokens["bob"]) as bob,
    ):
        slab = alice.allocate(4096, name="secret")
        for asked in ("secret", slab.id):
            with pytest.raises(SlabNotFound):
                bob.open(asked)
        assert bob.slabs() == []


def test_wrong_tokens_and_none_are_refused_alike(server: EmbeddedServer, tokens: dict[str, str]) -> None:
    def refusal(tenant: str, token: str | None = None) -> str:
        with pytest.raises(AuthenticationFailed) as caught:
            farpool.connect(server.tcp_url, tenant=tenant, token=token)
        assert not any(secret in caught.value.message for secret in (*tokens.values(), wrong))
        return caught.value.message.replace(f'"{tenant}"', "NAME")

    wrong = format_token(secrets.token_bytes(32))
    messages = {
        refusal(tenant="alice", token=wrong),
        refusal(tenant="alice", token=tokens["bob"]),
        refusal(tenant="open", token=wrong),
        refusal(tenant="nobody", token=wrong),
    }
    assert len(messages) == 1
    assert len({refusal(tenant=name) for name in ("alice", "open", "nobody", "default")}) == 1
    assert not any(token in server.log() for token in (*tokens.values(), wrong))


def test_challenges_look_alike_and_are_good_for_one_hello(
    server: EmbeddedServer, connect: Connect, tokens: dict[str, str]
) -> None:
    client = connect(server.tcp_url, hello=False)
    seen = {client.ask(Challenge(tenant=name, nonce=bytes(32)), Challenged).nonce for name in ["alice", "nobody"] * 50}
    assert len(seen) == 100
    assert {len(nonce) for nonce in seen} == {32}
    token = parse_token(tokens["alice"])
    challenged = client.ask(Challenge(tenant="alice", nonce=bytes(32)), Challenged)
    proof = proof_of(token, "alice", exchange_of("alice", bytes(32), challenged.nonce))
    hello = Hello(protocol=1, client="raw", tenant="alice", proof=proof)
    assert client.ask(hello, Welcome).tenant == "alice"
    replaying = connect(server.tcp_url, hello=False)
    with pytest.raises(AuthenticationFailed, match="answers a challenge"):
        replaying.ask(hello, Welcome)
    assert replaying.wait_for_end() == []
    again = connect(server.tcp_url, hello=False)
    again.ask(Challenge(tenant="alice", nonce=bytes(32)), Challenged)
    with pytest.raises(AuthenticationFailed):
        again.ask(hello, Welcome)
    assert again.wait_for_end() == []


@pytest.mark.parametrize("claimed", ["bob", "default", None])
def test_a_proof_is_one_tenants_alone(
    server: EmbeddedServer, connect: Connect, tokens: dict[str, str], claimed: str | None
) -> None:
    client = connect(server.tcp_url, hello=False)
    challenged = client.ask(Challenge(tenant="alice", nonce=bytes(32)), Challenged)
    proof = proof_of(parse_token(tokens["alice"]), "alice", exchange_of("alice", bytes(32), challenged.nonce))
    hello = Hello(protocol=1, client="raw", tenant=claimed, proof=proof)
    if claimed is None:
        assert client.ask(hello, Welcome).tenant == "alice"
    else:
        with pytest.raises(AuthenticationFailed):
            client.ask(hello, Welcome)


def test_a_challenge_that_cannot_be_is_refused(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.tcp_url, hello=False)
    with pytest.raises(ProtocolError, match="32 bytes"):
        client.ask(Challenge(tenant="alice", nonce=b"short"), Challenged)


def test_a_challenge_without_its_proof_opens_nothing(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url, hello=False)
    client.ask(Challenge(tenant="default", nonce=bytes(32)), Challenged)
    with pytest.raises(AuthenticationFailed):
        client.ask(Hello(protocol=1, client="raw"), Welcome)


def test_administrators_need_no_token_and_may_be_any_tenant(server: EmbeddedServer, tokens: dict[str, str]) -> None:
    for name in (None, "alice", "open"):
        with farpool.connect(server.url, tenant=name) as pool:
            assert pool.tenant == (name or "default")
    with pytest.raises(FarpoolError):
        farpool.connect(server.url, tenant="nobody")


def test_the_token_is_not_on_the_wire(server: EmbeddedServer, tokens: dict[str, str]) -> None:
    address = parse_address(server.tcp_url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        heard = bytearray()

        def pass_on() -> None:
            inside, _ = listener.accept()
            with inside, socket.create_connection((address.host, address.port)) as outside:
                back = threading.Thread(target=copy, args=(outside, inside))
                back.start()
                copy(inside, outside)
                back.join()

        def copy(source: socket.socket, target: socket.socket) -> None:
            while data := source.recv(65536):
                heard.extend(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=pass_on)
        thread.start()
        url = f"farpool://127.0.0.1:{listener.getsockname()[1]}"
        with farpool.connect(url, tenant="alice", token=tokens["alice"], transport="tcp") as pool:
            assert pool.stat().sessions
        thread.join(30)
    assert b"alice" in heard
    assert tokens["alice"].encode() not in heard
    assert parse_token(tokens["alice"]) not in heard


def test_a_rotated_token_is_worth_nothing(server: EmbeddedServer) -> None:
    old, new = secrets.token_bytes(32), secrets.token_bytes(32)
    with Administration(server.url, 30.0) as administration:
        administration.add_tenant("carol", old)
        with farpool.connect(server.tcp_url, tenant="carol", token=format_token(old)) as pool:
            administration.rotate_token("carol", new)
            pool.stat()
            administration.rotate_token("carol", new, end_sessions=True)
            with pytest.raises(AuthenticationFailed):
                pool.stat()
        farpool.connect(server.tcp_url, tenant="carol", token=format_token(new)).close()


def test_a_tenant_with_a_token_is_closed_where_nothing_is_required() -> None:
    token = secrets.token_bytes(32)
    with serve_embedded(transports=["tcp"]) as server:
        with Administration(server.url, 30.0) as administration:
            administration.add_tenant("alice", token)
            administration.add_tenant("open", None)
        farpool.connect(server.tcp_url).close()
        farpool.connect(server.tcp_url, tenant="open").close()
        farpool.connect(server.tcp_url, tenant="alice", token=format_token(token)).close()
        messages: set[str] = set()
        for name in ("alice", "nobody"):
            with pytest.raises(PermissionDenied, match="that is open to all") as caught:
                farpool.connect(server.tcp_url, tenant=name)
            messages.add(caught.value.message.replace(name, "NAME"))
        assert len(messages) == 1


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a client as another user")
@pytest.mark.parametrize("authentication", ["none", "required"])
def test_users_of_the_host_are_whose_the_configuration_says(authentication: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        settings: dict[str, Any] = {
            "unix": f"{folder}/f.sock",
            "socket_mode": "0666",
            "transports": ["tcp"],
            "authentication": authentication,
            "tenants": {"alice": {"uids": [NOBODY]}, "bob": {"uids": [NOBODY - 1]}, "closed": {"uids": []}},
        }
        with serve_embedded(**settings) as server:
            asked = json.dumps([None, "alice", "bob", "default"])
            command = [sys.executable, "-c", AS_NOBODY, str(NOBODY), server.url, asked]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    others = {"none": ["PermissionDenied", "default"], "required": ["AuthenticationFailed"] * 2}[authentication]
    assert json.loads(done.stdout) == ["alice", "alice", *others]


@pytest.mark.parametrize("required", [True, False])
def test_a_verified_certificate_is_whose_the_configuration_says(memory_folder: Path, required: bool) -> None:
    catalog = Catalog(str(memory_folder / "catalog.sqlite"), durable=False)
    settings = {name: TenantSettings(certificates=(f"{name}.example",)) for name in ("alice", "bob")}
    authentication = Authentication(Tenants(catalog, settings), lambda: required)
    alice = Peer("192.0.2.1:7", certificate_name="alice.example")

    def who(peer: Peer, tenant: str | None) -> str:
        return authentication.identify(peer, Hello(protocol=1, client="x", tenant=tenant), None).tenant

    assert who(alice, None) == who(alice, "alice") == "alice"
    for peer, tenant in ((alice, "bob"), (Peer("192.0.2.1:7"), "alice"), (Peer("x", certificate_name="eve"), "alice")):
        with pytest.raises(AuthenticationFailed if required else PermissionDenied):
            who(peer, tenant)
    catalog.close()
