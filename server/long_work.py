"""Work that would keep the loop from others for too long: done in threads, and waited for when the server ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final, TypeVar

__all__ = ["LONG_BYTES", "LongWork", "threads_for_long_work"]

T = TypeVar("T")

LONG_BYTES: Final = 16 << 20
"""Slabs over this are made and removed in a thread: the kernel takes over a millisecond for their pages."""

THREADS: Final = 2
"""How many make and remove long slabs."""


def threads_for_long_work() -> ThreadPoolExecutor:
    """Return threads that all run already.

    A server that has run out of memory could start none then, and what had asked for it would be done much later.
    """
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="farpool-pages")
    met = threading.Barrier(THREADS + 1)
    try:
        for _ in range(THREADS):
            executor.submit(met.wait)
        met.wait()
    except BaseException:
        met.abort()
        raise
    return executor


class LongWork:
    """What is under way in one server. The loop's thread alone uses it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._working: set[asyncio.Future[Any]] = set()

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run *work* in one of the threads for what takes long; the end of the server waits for it."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self.wait_for(future)
        return future

    def wait_for(self, work: asyncio.Future[Any]) -> None:
        """Let the end of the server wait for *work*."""
        self._working.add(work)
        work.add_done_callback(self._working.discard)

    async def finish(self) -> None:
        """Wait until nothing is under way."""
        while self._working:
            await asyncio.wait(self._working)
