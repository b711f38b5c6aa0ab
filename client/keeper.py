"""Reaches the server again for sessions that nobody calls at the moment.

A request notices that its connection has ended. A client that only loads and stores makes none: when its server
restarts it would stay away for longer than the server keeps its session, and lose its slabs. So one thread of the
process waits for the ends of control connections.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Final, Protocol

from farpool.client.backoff import Backoff
from farpool.native.fork import fork_count
from farpool.protocol.errors import DeadlineExceeded, FarpoolError, ServerLost, TransportUnavailable

__all__ = ["keep", "look_after", "release"]

TRY_SECONDS: Final = 2.0
"""How long one try to reach a server lasts. A call that comes meanwhile joins it."""

LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries, in the end: well within the grace of a server that starts."""

PASSING = (ServerLost, DeadlineExceeded, TransportUnavailable)
"""What another try may mend; of anything else the next call learns by itself."""


class Kept(Protocol):
    """A session, as its keeper sees it."""

    @property
    def closed(self) -> bool: ...

    @property
    def forked(self) -> bool: ...

    def is_connected(self) -> bool: ...

    def connection(self, deadline: float) -> object: ...


class _Keeper:
    """The thread, and the connections it watches. It keeps no session alive, and ends with the last.

    The lock below guards all but the thread itself, so that no descriptor is used that was closed.
    """

    def __init__(self) -> None:
        self.forks = fork_count()
        self._kept: dict[int, weakref.ref[Kept]] = {}
        self._lost: deque[weakref.ref[Kept]] = deque()
        self._restoring: set[weakref.ref[Kept]] = set()
        self.ended = False
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._epoll.register(self._wake, select.EPOLLIN)
            threading.Thread(target=self._run, name="farpool-keeper", daemon=True).start()
        except BaseException:
            os.close(self._wake)
            raise

    def watch(self, session: Kept, fd: int) -> None:
        """See the end of the connection over *fd*; closed descriptors leave the epoll by themselves."""
        self._kept[fd] = weakref.ref(session)
        self._kept = {at: kept for at, kept in self._kept.items() if at == fd or kept() not in (None, session)}
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def look_after(self, session: Kept) -> None:
        """See whether *session* has lost its connection, and restore it; in a thread of its own."""
        self._lost.append(weakref.ref(session))
        os.eventfd_write(self._wake, 1)

    def release(self, session: Kept) -> bool:
        """Forget *session*; return whether any is left."""
        self._kept = {fd: kept for fd, kept in self._kept.items() if kept() not in (None, session)}
        return bool(self._kept)

    def end(self) -> None:
        """Let the thread end, and close what it waits for."""
        self.ended = True
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd != self._wake:
                    self._restore(self._kept.get(fd))
            with _lock:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                if self.ended:
                    self._epoll.close()
                    os.close(self._wake)
                    return
            while self._lost:
                self._restore(self._lost.popleft())

    def _restore(self, kept: weakref.ref[Kept] | None) -> None:
        if kept is None or kept in self._restoring or not _is_lost(kept()):
            return
        self._restoring.add(kept)
        try:
            threading.Thread(target=self._restore_now, args=(kept,), name="farpool-reconnect", daemon=True).start()
        except RuntimeError:  # no thread to spare: then in this one, and others wait
            self._restore_now(kept)

    def _restore_now(self, kept: weakref.ref[Kept]) -> None:
        while True:
            again = _connect(kept)
            self._restoring.discard(kept)
            if not (again and _is_lost(kept())):  # it may have been lost once more just before
                return
            self._restoring.add(kept)


def _is_lost(session: Kept | None) -> bool:
    return session is not None and not session.closed and not session.forked and not session.is_connected()


def _connect(kept: weakref.ref[Kept]) -> bool:
    """Connect again, however long that takes; return False if there is no point in it."""
    backoff = Backoff(math.inf, LONGEST_PAUSE)
    while _is_lost(session := kept()):
        assert session is not None
        try:
            session.connection(time.monotonic() + TRY_SECONDS)
            backoff = Backoff(math.inf, LONGEST_PAUSE)
        except PASSING:
            pass
        except FarpoolError:
            return False
        del session
        backoff.wait()
    return True


_keeper: _Keeper | None = None
_lock = threading.RLock()  # a finalizer may close a pool where a connection is being made


def keep(session: Kept, fd: int) -> None:
    """Reconnect *session* when its connection over *fd* has ended; without threads or descriptors to spare, don't."""
    global _keeper
    with suppress(OSError, RuntimeError, ValueError), _lock:  # a descriptor that was closed meanwhile is a ValueError
        while True:
            keeper = _keeper
            if keeper is None or keeper.forks != fork_count():
                keeper = _keeper = _Keeper()
            keeper.watch(session, fd)
            if not keeper.ended:  # by a finalizer, which closed the last session of before
                return


def look_after(session: Kept) -> None:
    """Reconnect *session* if it has lost its connection, which this side may have closed."""
    with _lock:
        keeper = _keeper
        if keeper is not None and keeper.forks == fork_count() and not keeper.ended:
            keeper.look_after(session)


def release(session: Kept) -> None:
    """Leave *session* alone from now on."""
    global _keeper
    with _lock:
        keeper = _keeper
        if keeper is None or keeper.forks != fork_count() or keeper.release(session) or keeper.ended:
            return
        _keeper = None
        keeper.end()


def _forget() -> None:
    """Leave the parent's keeper to it, in a child."""
    global _keeper, _lock
    _keeper, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget)
