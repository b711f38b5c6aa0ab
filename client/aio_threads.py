"""Blocking calls, awaited: each runs in a thread, and what it makes after its caller has gone is undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple, Unpack

from farpool.client.deadlines import not_sent, seconds_left
from farpool.protocol.errors import DeadlineExceeded

__all__ = ["in_own_thread", "in_thread", "keep"]

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")


async def in_thread(
    threads: ThreadPoolExecutor,
    deadline: float,
    undo: Callable[[T], None],
    function: Callable[[Unpack[Arguments]], T],
    *arguments: *Arguments,
    late: Callable[[], DeadlineExceeded] = not_sent,
) -> T:
    """Await *function* in a thread, and keep its place in the queue of threads until *deadline*.

    Once it runs, the function keeps its own time. If the caller is cancelled, *undo* what it returns later.

    Raises:
        DeadlineExceeded: no thread was free in time and nothing was done, in the words of *late*.
    """
    future = threads.submit(function, *arguments)
    expiry = _Expiry(future)
    timer = asyncio.get_running_loop().call_later(seconds_left(deadline), expiry)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if expiry.was_the_reason():
            raise late() from None
        future.add_done_callback(lambda done: _undo_result(done, undo))
        raise
    finally:
        timer.cancel()


def in_own_thread(function: Callable[[], None]) -> Future[None]:
    """Run *function* in a thread of its own."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="farpool-aio-close")
    future = thread.submit(function)
    thread.shutdown(wait=False)
    return future


def keep(result: object) -> None:
    """Undo nothing."""


class _Expiry:
    """Takes a call out of the queue of threads if it is still there."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future
        self._task = asyncio.current_task()
        self._cancels = self._task.cancelling() if self._task is not None else 0
        self._expired = False

    def __call__(self) -> None:
        self._expired = self._future.cancel()

    def was_the_reason(self) -> bool:
        """Tell whether the call ended by this, and not by somebody who cancelled the caller."""
        return self._expired and (self._task is None or self._task.cancelling() == self._cancels)


def _undo_result(done: Future[T], undo: Callable[[T], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())
