"""A client whose finalizers close what they have, while the collector runs at every place that it may run at.

``test_closing`` starts it as a child: what goes wrong here stands still for ever, and a child can be ended.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import farpool
import farpool.aio

ROUNDS: Final = 240
MOST_OBJECTS: Final = 120
"""Objects that may be made before the collector runs: as many as each call here makes, one more every round."""

PATIENCE: Final = 50.0
"""Seconds after which it prints where it stands, and ends."""


class Finalized:
    """What closes something when the collector takes it."""

    def __init__(self, closes: Any) -> None:
        self.closes = closes
        self.itself = self

    def __del__(self) -> None:
        self.closes.close()


@contextmanager
def collecting_in_the_middle(number: int) -> Generator[None]:
    """Let the collector run within the block, in another place each time."""
    gc.set_threshold(1 + number % MOST_OBJECTS, 1, 1)
    gc.enable()
    try:
        yield
    finally:
        gc.disable()


def close_by_sync(url: str, transport: str, what: str) -> None:
    """Close a pool, a slab or a draft in the middle of calls of its own pool's."""
    for number in range(ROUNDS):
        with farpool.connect(url, transport=transport) as pool:
            slab = pool.allocate(64)
            closes: Any = {"pool": pool, "slab": slab, "draft": slab.reserve() if what == "draft" else None}[what]
            Finalized(closes)
            del closes
            if what == "pool":
                del slab
            with collecting_in_the_middle(number):
                try:
                    pool.allocate(64).write(b"x")
                except (farpool.InvalidArgument, farpool.StaleSlab, farpool.ServerLost):
                    if what != "pool":
                        raise


async def close_by_aio(url: str, transport: str, what: str) -> None:
    """Close slabs and drafts in the middle of their pool's calls; pools where any executor is given work."""
    async with farpool.aio.connect(url, transport=transport) as pool:
        slab = await pool.allocate(64, name="kept")
        for number in range(ROUNDS):
            if what == "pool":
                Finalized(await farpool.aio.connect(url, transport=transport))
            else:
                Finalized(await (pool.open("kept") if what == "slab" else slab.reserve()))
            with ThreadPoolExecutor(2) as unrelated, collecting_in_the_middle(number):
                await pool.stat()
                for _ in range(10):
                    unrelated.submit(int)
        gc.collect()


def main(url: str, transport: str, api: str, what: str) -> None:
    """Do as the test says."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    gc.disable()
    if api == "sync":
        close_by_sync(url, transport, what)
    else:
        asyncio.run(close_by_aio(url, transport, what))


if __name__ == "__main__":
    main(*sys.argv[1:])
