"""``farpool tenant`` against a real server, and the commands that take a tenant and its token from the environment."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.server.embedded import EmbeddedServer

Cli = Callable[..., Any]
"""Runs one command; what it returns has ``code``, ``out`` and ``err``."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="64MiB", authentication="required") as served:
        yield served


@pytest.fixture
def remote(bare: Cli, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run one command as a client that is no administrator."""
    monkeypatch.setenv("FARPOOL_URL", server.tcp_url)
    return bare


def test_a_tenants_life(cli: Cli, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli("tenant", "add", "alice")
    assert made.code == 0
    token = made.out.strip()
    assert made.out == f"{token}\n"
    assert "only time" in made.err
    assert token not in made.err
    assert cli("tenant", "add", "alice").code == 4
    with farpool.connect(server.tcp_url, tenant="alice", token=token):
        records = [json.loads(line) for line in cli("tenant", "list", "--json").out.splitlines()]
        listed = {record["name"]: record for record in records}
        assert listed["alice"]["token"] is True
        assert listed["alice"]["sessions"] == 1
        assert listed["default"]["token"] is False
        assert "alice" in cli("tenant", "list").out
        kept = cli("tenant", "remove", "alice")
        assert kept.code == 4
        assert "--force" in kept.err
    fresh = json.loads(cli("tenant", "rotate", "alice", "--json").out)
    assert fresh == {"tenant": "alice", "token": fresh["token"]}
    with pytest.raises(farpool.AuthenticationFailed):
        farpool.connect(server.tcp_url, tenant="alice", token=token)
    farpool.connect(server.tcp_url, tenant="alice", token=fresh["token"]).close()
    assert cli("tenant", "remove", "--force", "alice").code == 0
    assert "alice" not in cli("tenant", "list").out
    assert cli("tenant", "remove", "alice").code == 2


def test_a_token_file_is_its_owners_and_complete(cli: Cli, server: EmbeddedServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = cli("tenant", "add", "filed", "--token-file", file)
    assert (made.code, made.out) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    farpool.connect(server.tcp_url, tenant="filed", token=file.read_text().strip()).close()
    before = file.read_text()
    assert cli("tenant", "add", "filed", "--token-file", tmp_path / "other").code == 4
    assert file.read_text() == before
    assert cli("tenant", "rotate", "filed", "--token-file", file, "--json").out == (
        json.dumps({"tenant": "filed", "token_file": str(file)}) + "\n"
    )
    assert file.read_text() != before
    assert list(tmp_path.iterdir()) == [file]
    lost = cli("tenant", "add", "nowhere", "--token-file", tmp_path / "missing" / "token")
    assert lost.code == 2
    assert "nothing was changed" in lost.err
    assert "nowhere" not in cli("tenant", "list").out


def test_a_file_with_a_token_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bob.token"
    assert cli("tenant", "add", "bob", "--token-file", file).code == 0
    before = file.read_text()
    refused = cli("tenant", "add", "carol", "--token-file", file)
    assert refused.code == 2
    assert "name another file" in refused.err
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]
    assert "carol" not in cli("tenant", "list").out


def test_a_tenant_without_a_token(cli: Cli) -> None:
    assert cli("tenant", "add", "bare", "--no-token").out == ""
    assert "bare" in cli("tenant", "list").out
    assert cli("tenant", "add", "both", "--no-token", "--token-file", "x").code == 2
    assert cli("tenant", "remove", "bare").code == 0


@pytest.mark.parametrize("name", ["", "a/b", "-", "ü"])
def test_names_that_cannot_be(cli: Cli, name: str) -> None:
    result = cli("tenant", "add", "--", name)
    assert (result.code, result.out) == (2, "")


def test_others_are_refused_and_told_where_to_ask(remote: Cli, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    token = cli("tenant", "add", "carol").out.strip()
    monkeypatch.setenv("FARPOOL_URL", farpool_tcp(cli))
    assert remote("ls").code == 4
    monkeypatch.setenv("FARPOOL_TENANT", "carol")
    monkeypatch.setenv("FARPOOL_TOKEN", token)
    refused = remote("tenant", "list")
    assert refused.code == 4
    assert "unix://" in refused.err
    assert remote("tenant", "add", "dave").code == 4


def farpool_tcp(cli: Cli) -> str:
    addresses = json.loads(cli("status", "--json").out)["addresses"]
    return next(str(address) for address in addresses if address.startswith("farpool://"))


def test_commands_work_with_a_tenant_and_its_token(
    cli: Cli, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    cli("tenant", "add", "erin", "--token-file", file)
    monkeypatch.setenv("FARPOOL_URL", server.tcp_url)
    monkeypatch.setenv("FARPOOL_TOKEN_FILE", str(file))
    data = tmp_path / "data"
    data.write_bytes(b"hello" * 1000)
    for command in (
        ("status",),
        ("alloc", "4096", "--name", "slab"),
        ("put", data, "--name", "data"),
        ("get", "data", tmp_path / "back"),
        ("ls",),
        ("free", "slab", "data"),
    ):
        assert cli(*command, "--tenant", "erin").code == 0, command
        refused = cli(*command, "--tenant", "default")
        assert refused.code == 4, command
        assert file.read_text().strip() not in refused.err
    assert (tmp_path / "back").read_bytes() == data.read_bytes()
