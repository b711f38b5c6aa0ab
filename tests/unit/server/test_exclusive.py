"""A slab for one session alone, where several of its requests ask for that at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from farpool.protocol.errors import PoolFull
from farpool.protocol.messages import Allocate, Attached, Open, ServerStat, Stat
from farpool.server.embedded import serve_embedded

if TYPE_CHECKING:
    from tests.unit.server.conftest import RawClient

ALONE = Open(name="large", transport="cxl", exclusive=True)
SHARED = Open(name="large", transport="cxl")

WITHIN = 20.0
"""Seconds in which a session whose connection ended has ended; only a failure takes so long."""


def wait_for_sessions(client: RawClient, count: int) -> None:
    deadline = time.monotonic() + WITHIN
    while client.ask(Stat(), ServerStat).sessions > count:
        assert time.monotonic() < deadline, "a session that nobody resumes lives on"
        time.sleep(0.02)


def test_whoever_waited_for_a_move_that_failed_is_not_told_of_it_as_done(
    connect: Callable[..., RawClient], small_file_system: Path
) -> None:
    """Somebody who is gone may map the slab, and there is no room for a copy: nobody can have it alone."""
    with serve_embedded(capacity="64MiB", arena=small_file_system / "arena", transports=["cxl"]) as server:
        client = connect(server.url)
        client.ask(Allocate(nbytes=500_000, name="large", lease="persistent"), Attached)
        gone = connect(server.url)
        gone.ask(SHARED, Attached)
        gone.close()
        wait_for_sessions(client, 1)
        asked = [client.send(ALONE) for _ in range(3)]
        for request_id in asked:
            with pytest.raises(PoolFull):
                client.answer(request_id, Attached)
        other = connect(server.url)
        assert other.ask(SHARED, Attached).slab.name == "large"
