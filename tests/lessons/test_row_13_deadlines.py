"""Lessons row 13: a transfer stayed in progress for ever when the peer stalled, with no way back.

Here every operation has a deadline and comes to an end by it, however many are under way, and what stalled can go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import farpool
import farpool.aio

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

TIMEOUT = 0.3
WITHIN = 20.0
"""Far more than the deadline, far less than for ever: an ended call is what is asked for, not a quick one."""


def outcome_of(call: Callable[[], object]) -> str:
    try:
        call()
    except farpool.FarpoolError as error:
        return type(error).__name__
    return "done"


def test_many_threads(server: EmbeddedServer, pool: farpool.Pool, transport: str) -> None:
    """More of them than there are data connections."""
    slab = pool.allocate(1 << 20)
    data = bytes(1 << 20)
    calls: list[Callable[[], object]] = [
        lambda: slab.read(1 << 20, timeout=TIMEOUT),
        lambda: slab.write(data, timeout=TIMEOUT),
        lambda: slab.writev([(0, b"a"), (100, b"b")], timeout=TIMEOUT),
        lambda: slab.fetch_add(0, 1, timeout=TIMEOUT),
        lambda: pool.stat(timeout=TIMEOUT),
        lambda: pool.allocate(64, timeout=TIMEOUT),
    ]
    server.suspend()
    try:
        begun = time.monotonic()
        with ThreadPoolExecutor(4 * len(calls)) as threads:
            outcomes = list(threads.map(outcome_of, calls * 4))
        assert time.monotonic() - begun < WITHIN
    finally:
        server.resume()
    ended = {"done", "DeadlineExceeded"} if transport == "cxl" else {"DeadlineExceeded", "ServerLost"}
    assert set(outcomes) <= ended
    assert slab.write(b"recovered") == 9
    assert slab.read(9) == b"recovered"
    assert pool.stat().sessions >= 1


async def test_many_tasks(server: EmbeddedServer, transport: str) -> None:
    async with farpool.aio.connect(server.url, transport=transport) as pool:
        slab = await pool.allocate(1 << 20)
        server.suspend()
        try:
            calls: list[Any] = [slab.read(1 << 20, timeout=TIMEOUT) for _ in range(50)]
            calls += [slab.write(bytes(1 << 16), timeout=TIMEOUT) for _ in range(50)]
            calls += [pool.stat(timeout=TIMEOUT) for _ in range(8)]
            async with asyncio.timeout(WITHIN):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            server.resume()
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert {type(error) for error in errors} <= {farpool.DeadlineExceeded, farpool.ServerLost}
        assert len(errors) == (8 if transport == "cxl" else 108)
        await slab.write(b"recovered")
        assert await slab.read(9) == b"recovered"


def test_server_that_accepts_and_says_nothing(server: EmbeddedServer) -> None:
    """A stopped server's kernel still accepts connections: opening a session ends by its deadline as well."""
    server.suspend()
    try:
        assert outcome_of(lambda: farpool.connect(server.url, timeout=TIMEOUT)) == "DeadlineExceeded"
        assert outcome_of(lambda: farpool.connect(server.tcp_url, timeout=TIMEOUT)) == "DeadlineExceeded"
    finally:
        server.resume()
