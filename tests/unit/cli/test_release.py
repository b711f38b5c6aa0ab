"""``farpool release`` and what ``farpool status`` shows of the quarantine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.server.embedded import EmbeddedServer

Cli = Callable[..., Any]

UNIT = 2 << 20
LEAVE = """
import os, sys, farpool
pool = farpool.connect(sys.argv[1], transport="cxl")
slab = pool.allocate("4MiB")
os._exit(0)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    device = tmp_path / "device"
    with device.open("wb") as file:
        file.truncate(8 * UNIT)
    settings: dict[str, Any] = {"arena": device, "state_dir": str(tmp_path / "state"), "disconnect_grace": 0.05}
    with farpool.serve_embedded(capacity="14MiB", **settings) as served:
        yield served


@pytest.fixture
def abandoned(server: EmbeddedServer) -> None:
    """Leave an extent to a session that came over TCP, as from another host, and ended without a word."""
    subprocess.run([sys.executable, "-c", LEAVE, server.tcp_url], check=True, timeout=100)
    with farpool.connect(server.url) as pool:
        for _ in range(1000):
            if pool.stat().quarantined:
                return
            subprocess.run(["true"], check=True)
    pytest.fail("the session did not end")


@pytest.mark.usefixtures("abandoned")
def test_what_a_lost_host_had_is_shown_and_given_back(cli: Cli) -> None:
    assert "127.0.0.1 holds 4 MiB of 1 slab in 1 ended session" in cli("status").out
    (entry,) = json.loads(cli("status", "--json").out)["quarantined"]
    assert entry == {"host": "127.0.0.1", "sessions": 1, "slabs": 1, "nbytes": 2 * UNIT}
    asked = cli("release", "--host", "127.0.0.1")
    assert asked.code == 4
    assert "127.0.0.1 holds 4 MiB of 1 slab" in asked.err
    assert "run: farpool release --host 127.0.0.1 --yes" in asked.err
    done = cli("release", "--host", "127.0.0.1", "--yes")
    assert (done.code, done.out) == (0, "released 1 session of 127.0.0.1: 4 MiB of 1 slab came back\n")
    assert "quarantined" not in cli("status").out


@pytest.mark.usefixtures("abandoned")
def test_it_prints_json(cli: Cli) -> None:
    done = cli("release", "--host", "127.0.0.1", "--yes", "--json")
    assert json.loads(done.out) == {"host": "127.0.0.1", "sessions": 1, "slabs": 1, "nbytes": 2 * UNIT}


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_an_unknown_host_is_named_beside_those_that_hold_something(cli: Cli, yes: list[str]) -> None:
    result = cli("release", "--host", "10.0.0.9", *yes)
    assert result.code == 2
    assert "no ended session of host '10.0.0.9' holds memory; those that do: 127.0.0.1" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("abandoned")
def test_from_another_host_it_says_where_to_ask(bare: Cli, server: EmbeddedServer) -> None:
    result = bare("release", "--host", "127.0.0.1", "--yes", "--url", server.tcp_url)
    assert result.code == 4
    assert (
        f"release is for administrators: root or the server's own user, on the server's host, over {server.url}"
        in result.err
    )


@pytest.mark.usefixtures("abandoned")
def test_from_another_host_it_says_how_much_and_not_whose(bare: Cli, server: EmbeddedServer) -> None:
    out = bare("status", "--url", server.tcp_url).out
    assert "4 MiB of 1 slab in 1 ended session" in out
    assert "127.0.0.1 holds" not in out


async def test_the_awaitable_pool_has_it_too(server: EmbeddedServer) -> None:
    async with farpool.aio.connect(server.url) as pool:
        with pytest.raises(farpool.InvalidArgument, match="none does"):
            await pool.release_host("nowhere")
        with pytest.raises(farpool.InvalidArgument, match="a host is named as"):
            await pool.release_host(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
