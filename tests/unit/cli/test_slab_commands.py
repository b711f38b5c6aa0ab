"""``alloc``, ``ls``, ``free`` and ``status`` against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from farpool.server.embedded import EmbeddedServer

Cli = Callable[..., Any]
"""Runs one command; what it returns has ``code``, ``out`` and ``err``."""


def records(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_slab_outlives_the_command_that_made_it(cli: Cli) -> None:
    made = cli("alloc", "64KiB", "--name", "kept")
    assert made.code == 0
    assert made.err == ""
    listed = {record["id"]: record for record in records(cli("ls", "--json").out)}
    mine = listed[int(made.out)]
    assert (mine["name"], mine["nbytes"], mine["lease"], mine["state"]) == (
        "kept",
        65536,
        "persistent",
        "live",
    )
    freed = cli("free", "kept")
    assert freed.code == 0
    assert freed.out.startswith(f"freed slab {made.out.strip()} (kept), 64 KiB")
    assert cli("free", "kept").code == 3


def test_json_of_alloc_and_free(cli: Cli) -> None:
    made = json.loads(cli("alloc", "4096", "--lease", "60", "--json").out)
    assert made == {"id": made["id"], "name": None, "nbytes": 4096, "lease": 60.0}
    (freed,) = records(cli("free", made["id"], "--json").out)
    assert freed == {"id": made["id"], "name": None, "nbytes": 4096, "freed": True}


def test_a_leased_slab_outlives_the_session_and_shows_its_time_left(cli: Cli) -> None:
    made = json.loads(cli("alloc", "1MiB", "--name", "leased", "--lease", "90", "--json").out)
    (mine,) = (record for record in records(cli("ls", "--json").out) if record["id"] == made["id"])
    assert mine["lease"] == 90.0
    assert 0 < mine["expires_in"] <= 90
    assert "s left" in cli("ls").out
    cli("free", "leased")


def test_free_takes_several_and_stops_at_the_first_that_fails(cli: Cli) -> None:
    names = ["first", "second", "third"]
    for name in names:
        assert cli("alloc", "4KiB", "--name", name).code == 0
    result = cli("free", "first", "missing", "third")
    assert result.code == 3
    assert len(result.out.splitlines()) == 1
    assert cli("free", "second", "third").code == 0


@pytest.mark.parametrize(
    ("size", "code"), [("0", 2), ("-5", 2), ("12XB", 2), ("lots", 2), ("0.3", 2), ("65MiB", 5), ("1PiB", 5)]
)
def test_a_size_that_cannot_be(cli: Cli, size: str, code: int) -> None:
    result = cli("alloc", size)
    assert result.code == code
    assert result.out == ""
    assert result.err.startswith("farpool: ")
    assert result.err.count("\n") == 1


def test_a_full_pool_states_what_was_asked_and_what_is_free(cli: Cli) -> None:
    message = cli("alloc", "65MiB").err
    assert "65 MiB" in message or str(65 << 20) in message
    assert "64 MiB" in message or str(64 << 20) in message


def test_names_that_cannot_be(cli: Cli) -> None:
    assert cli("alloc", "4KiB", "--name", "bell\a").code == 2
    assert cli("alloc", "4KiB", "--name", "x" * 256).code == 2
    assert cli("alloc", "4KiB", "--name", "").code == 2
    assert cli("free", "unheard of").code == 3
    assert cli("free", 999999).code == 3


def test_a_name_that_is_taken_is_code_4(cli: Cli) -> None:
    assert cli("alloc", "4KiB", "--name", "mine").code == 0
    result = cli("alloc", "4KiB", "--name", "mine")
    assert result.code == 4
    assert "mine" in result.err
    assert cli("free", "mine").code == 0


def test_ls_of_nothing(cli: Cli) -> None:
    result = cli("ls")
    assert result.code == 0
    assert cli("ls", "--json").out == ""


def test_status_as_json_is_one_object(cli: Cli, server: EmbeddedServer) -> None:
    stat = json.loads(cli("status", "--json").out)
    assert stat["pid"] == server.pid
    assert stat["capacity"] == 64 << 20
    assert set(stat["transports"]) >= {"cxl", "tcp"}


def test_status_waits_no_longer_than_it_must(cli: Cli) -> None:
    assert cli("status", "--wait", "60").code == 0


def test_status_for_people_names_what_matters(cli: Cli, server: EmbeddedServer) -> None:
    out = cli("status").out
    for word in ("capacity", "64 MiB", str(server.pid), "cxl", "tcp"):
        assert word in out


def test_status_over_tcp(cli: Cli, server: EmbeddedServer) -> None:
    result = cli("status", "--url", server.tcp_url)
    assert result.code == 0
    for word in ("serving", "started 1 time", "64 MiB"):
        assert word in result.out
    for word in ("pid", server.arena):
        assert word not in result.out, "an administrator alone is told"


def test_doctor_finds_the_server_and_its_transports(cli: Cli, server: EmbeddedServer) -> None:
    result = cli("doctor", "--json")
    findings = {record["check"]: record for record in records(result.out)}
    assert findings["server"]["level"] == "ok"
    assert str(server.pid) in findings["server"]["message"]
    assert findings["tcp transport"]["level"] == "ok"
    assert findings["cxl transport"]["level"] == "ok"
    assert findings["native code"]["level"] == "ok"
    for record in findings.values():
        assert set(record) == {"check", "level", "message", "mend", "rows"}
        assert record["level"] in ("ok", "warn", "fail")
    assert result.code == 0
