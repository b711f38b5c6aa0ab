"""Blocking calls, awaited: each runs in a thread, and what it makes after its caller has gone is undone.

The threads are a session's own: those of the event loop are few, and may be busy with what the application pleases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, TransportUnavailable

__all__ = ["MOST_THREADS", "in_thread", "keep", "not_sent"]

Arguments = TypeVarTuple("Arguments")
T = TypeVar("T")

MOST_THREADS: Final = 32
"""Blocking calls of one session that run at once; more of them queue, until their deadline at most."""

SHUT_DOWN: Final = "shutdown"
"""In what an executor says that takes no more work; without a thread to start it says something else."""


def not_sent() -> DeadlineExceeded:
    """Return what to say of a call whose deadline passed before a thread was free for it."""
    return DeadlineExceeded("too many calls of this pool wait for its server; this one was not sent")


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
        TransportUnavailable: this process may start no more threads.
        InvalidArgument: the session was closed meanwhile.
    """
    try:
        future = threads.submit(function, *arguments)
    except RuntimeError as error:
        if SHUT_DOWN in str(error):
            raise InvalidArgument("this pool was closed meanwhile, and nothing was sent; connect again") from None
        raise TransportUnavailable(f"there is no thread for this call ({error}); see ulimit -u, and -v") from error
    expiry = _Expiry(future)
    timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), expiry)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if expiry.was_the_reason():
            raise late() from None
        future.add_done_callback(lambda done: _undo_result(done, undo))
        raise
    finally:
        timer.cancel()


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
