"""A client that has few file descriptors: ``python starved.py URL TRANSPORT API``.

With room for one more descriptor each time, it does a client's day of work; then it loses every spare one when it has
connected. Each attempt must work or raise one of our errors that says what is wrong, and leave no descriptor behind. It
prints the outcomes as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import resource
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import farpool

MOST = 20


async def use(pool: Any) -> None:
    """Do what a client does all day."""
    for _ in range(2):
        slab = await result_of(pool.allocate(4096))
        await result_of(slab.write(b"word"))
        assert await result_of(slab.read(4)) == b"word"
        await result_of(slab.free())


async def result_of(value: Any) -> Any:
    """Return what the synchronous API returned, or what the awaitable one gives."""
    return await value if inspect.isawaitable(value) else value


@contextmanager
def limit_of(spare: int) -> Generator[None]:
    """Leave room for *spare* more descriptors; the loop's own are open by now."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_descriptors() + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def connected(url: str, transport: str, api: str) -> AsyncGenerator[Any]:
    """Connect on either API, and close."""
    connect: Any = farpool.connect if api == "sync" else farpool.aio.connect
    pool = await result_of(connect(url, transport=transport, timeout=5.0))
    try:
        yield pool
    finally:
        await result_of(pool.close())


async def start_with(spare: int, url: str, transport: str, api: str) -> None:
    """Connect and work with few descriptors."""
    with limit_of(spare):
        async with connected(url, transport, api) as pool:
            await use(pool)


async def lose_all(url: str, transport: str, api: str) -> None:
    """Connect, and then work without one; afterwards the same pool must work."""
    async with connected(url, transport, api) as pool:
        try:
            with limit_of(0):
                await use(pool)
        finally:
            await use(pool)


def open_descriptors() -> int:
    """Return how many are open, the listing's own left out."""
    return len(list(Path("/proc/self/fd").iterdir())) - 1


def still_open(before: set[Path]) -> list[Path]:
    """Return what was opened since; a thread that has been told to end has its time to close what it holds."""
    end = time.monotonic() + 5
    while left := [path for path in Path("/proc/self/fd").iterdir() if path not in before and path.exists()]:
        if time.monotonic() > end:
            return left
        time.sleep(0.01)
    return []


def outcome_of(job: Coroutine[Any, Any, None]) -> str:
    """Do the job; return "" or our error's text."""
    before = set(Path("/proc/self/fd").iterdir())
    try:
        asyncio.run(job)
    except farpool.FarpoolError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        left = still_open(before)
        assert not left, f"some descriptors were left open: {[path.readlink() for path in left]}"
    return ""


def main(url: str, transport: str, api: str) -> None:
    """Print what came of each limit, and of the loss of all."""
    assert not outcome_of(start_with(100, url, transport, api))  # loads what is loaded lazily
    outcomes = [outcome_of(start_with(spare, url, transport, api)) for spare in range(MOST)]
    print(json.dumps([*outcomes, outcome_of(lose_all(url, transport, api))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
