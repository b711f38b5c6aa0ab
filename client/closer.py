"""The thread that ends what is closed in an event loop, and in finalizers: ``close`` only leaves word with it.

The collector runs in any thread, with any lock held. A finalizer that closes something may stand in the middle of an
executor's ``submit``, whose locks are not re-entrant; a ``SimpleQueue`` is made for that. So nothing else is touched
here, and the thread that looks into the queue is there from the start: where none can be started, nothing was opened.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, NamedTuple
from weakref import WeakSet

from farpool.client.deadlines import seconds_left
from farpool.native.fork import fork_count
from farpool.protocol.errors import TransportUnavailable

__all__ = ["Closer", "await_until"]

EXIT_SECONDS: Final = 2.0
"""How long the end of the interpreter waits for what was closed before it: a little more than for a Goodbye."""


class Job(NamedTuple):
    """What is to be done."""

    work: Callable[[], None]
    in_haste: Callable[[], None]
    """What is done instead where there is no thread: it must not wait."""
    threads: ThreadPoolExecutor | None
    """Whose threads do it, None for the closer's own; it may wait for long in those."""
    done: Future[None]
    turns: Iterator[int]
    """Who gets 0 does it: an executor that has no thread for it says so, and keeps it for the next that it has."""


class Closer:
    """One for a pool of ``farpool.aio``; it keeps nothing alive but what it has to do. Thread-safe.

    Raises:
        TransportUnavailable: this process may start no more threads.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended = False
        self._forks = fork_count()
        self._thread = threading.Thread(target=self._run, name="farpool-aio-close", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise TransportUnavailable(f"there is no thread for this pool ({error}); see ulimit -u, and -v") from error
        _closers.add(self)

    def do(
        self, work: Callable[[], None], in_haste: Callable[[], None], threads: ThreadPoolExecutor | None = None
    ) -> Future[None]:
        """Have *work* done, and return at once; safe in finalizers.

        In a forked child, and as the interpreter ends, *in_haste* is done here and now.
        """
        job = Job(work, in_haste, threads, Future(), count())
        if self._forks != fork_count():
            _finish(job, job.in_haste)
            return job.done
        self._jobs.put(job)
        if self._ended:  # the thread may have looked for the last time before this was there
            self._do_the_rest_in_haste()
        return job.done

    def stop(self) -> None:
        """Let the thread end once it has done what it was given before. Idempotent."""
        if self._forks == fork_count():
            self._jobs.put(None)

    def wait(self, deadline: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds_left(deadline))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(job)
            del job  # what it was about must not live on until the next
        self._ended = True
        self._do_the_rest_in_haste()

    def _do_the_rest_in_haste(self) -> None:
        with suppress(Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    _finish(job, job.in_haste)


def _do(job: Job) -> None:
    if job.threads is None:
        _finish(job, job.work)
        return
    try:
        job.threads.submit(_finish, job, job.work)
    except RuntimeError:  # there is no thread for it, or its pool is closed
        _finish(job, job.in_haste)


def _finish(job: Job, work: Callable[[], None]) -> None:
    done = job.done
    if next(job.turns) or not done.set_running_or_notify_cancel():
        return
    try:
        work()
    except BaseException as error:  # it comes out where the end is awaited
        done.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        done.set_result(None)


async def await_until(deadline: float, ended: Future[None]) -> None:
    """Await the end of something, and what came of it, unless that takes until *deadline*."""
    if not ended.done():
        with suppress(TimeoutError):  # a thread may still be waited for
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(ended)), seconds_left(deadline))
        return
    ended.result()


_closers: WeakSet[Closer] = WeakSet()


def _end_all() -> None:
    """Have done what was closed before the interpreter ends: after it a thread may stand still with a lock held."""
    deadline = monotonic() + EXIT_SECONDS
    closers = list(_closers)
    for closer in closers:
        closer.stop()
    for closer in closers:
        closer.wait(deadline)


atexit.register(_end_all)
