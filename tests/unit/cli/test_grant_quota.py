"""``farpool grant`` and ``farpool quota`` against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import farpool
from farpool.client.administration import Administration
from farpool.server.embedded import EmbeddedServer

Cli = Callable[..., Any]
"""Runs one command; what it returns has ``code``, ``out`` and ``err``."""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="64MiB", transports=["tcp"]) as served:
        with Administration(served.url, 30) as administration:
            administration.add_tenant("reader", None)
        yield served


def records(result: Any) -> list[dict[str, Any]]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_grants_life(cli: Cli, pool: farpool.Pool, server: EmbeddedServer) -> None:
    slab = pool.allocate(4096, name="weights")
    assert "no grants" in cli("grant", "weights").out
    (given,) = records(cli("grant", "weights", "reader", "--expires", "3600", "--json"))
    assert given == {"id": slab.id, "name": "weights", "tenant": "reader", "mode": "r", "expires": 3600}
    (listed,) = records(cli("grant", slab.id, "--json"))
    assert (listed["tenant"], listed["mode"]) == ("reader", "r")
    assert "reader" in cli("grant", "weights").out
    with farpool.connect(server.url, tenant="reader", transport="tcp") as other:
        other.open("weights", mode="r").close()
        assert "default" in cli("ls", "--tenant", "reader").out
        refused = cli("grant", "weights", "default", "--tenant", "reader")
        assert refused.code == 4
    assert cli("grant", "weights", "reader", "--mode", "rw").code == 0
    (done,) = records(cli("grant", "weights", "reader", "--revoke", "--json"))
    assert done == {"id": slab.id, "name": "weights", "tenant": "reader", "revoked": True}
    assert records(cli("grant", "weights", "--json")) == []


def test_what_a_grantee_has_alone_is_taken_back(cli: Cli, pool: farpool.Pool, server: EmbeddedServer) -> None:
    with pool.allocate(4096, name="alone", lease="persistent") as slab:
        slab.grant("reader", mode="rw")
    with farpool.connect(server.url, tenant="reader", transport="tcp") as other:
        taken = other.open("alone", exclusive=True)
        with pytest.raises(farpool.SlabBusy):
            pool.open("alone")
        (done,) = records(cli("grant", "alone", "reader", "--revoke", "--json"))
        assert done == {"id": taken.id, "name": "alone", "tenant": "reader", "revoked": True}
        with pytest.raises(farpool.StaleSlab, match="open"):
            taken.read(1)
    pool.open("alone").free()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("grant", "weights", "--revoke"), 2),
        (("grant", "weights", "reader", "--revoke", "--mode", "rw"), 2),
        (("grant", "weights", "reader", "--expires", "session"), 2),
        (("grant", "weights", "reader", "--mode", "w"), 2),
        (("grant", "weights", "nobody"), 2),
        (("grant", "missing", "reader"), 3),
        (("quota", "set", "reader"), 2),
        (("quota", "set", "reader", "--bytes", "much"), 2),
        (("quota", "set", "reader", "--slabs", "-1"), 2),
        (("quota", "set", "reader", "--rate", "0"), 2),
        (("quota", "set", "nobody", "--slabs", "1"), 2),
        (("quota", "show", "nobody"), 2),
    ],
)
def test_what_cannot_be_is_one_line(cli: Cli, pool: farpool.Pool, arguments: tuple[str, ...], code: int) -> None:
    slab = pool.allocate(4096, name="weights")
    result = cli(*arguments)
    assert (result.code, result.out) == (code, "")
    assert len(result.err.splitlines()) == 1
    slab.free()


def test_a_quota_is_set_shown_and_taken_away(cli: Cli, server: EmbeddedServer) -> None:
    assert (
        cli("quota", "set", "reader", "--bytes", "1MiB", "--slabs", "3", "--sessions", "2", "--rate", "500").code == 0
    )
    (shown,) = records(cli("quota", "show", "reader", "--json"))
    assert shown == {
        "name": "reader",
        "nbytes": 0,
        "max_bytes": 1 << 20,
        "slabs": 0,
        "max_slabs": 3,
        "sessions": 0,
        "max_sessions": 2,
        "max_rate": 500,
    }
    full = cli("alloc", "2MiB", "--lease", "persistent", "--tenant", "reader")
    assert full.code == 5
    assert "its quota of 1 MiB" in full.err
    for command in (("quota", "show"), ("tenant", "list"), ("status", "--tenants")):
        assert "0 B of 1 MiB" in cli(*command).out
    (status,) = records(cli("status", "--tenants", "--json"))
    assert {tenant["name"] for tenant in status["tenants"]} == {"default", "reader"}
    assert cli("quota", "set", "reader", "--bytes", "none", "--slabs", "none").code == 0
    (shown,) = records(cli("quota", "show", "reader", "--json"))
    assert (shown["max_bytes"], shown["max_slabs"], shown["max_sessions"]) == (None, None, 2)
    assert cli("alloc", "2MiB", "--tenant", "reader", "--lease", "1").code == 0
