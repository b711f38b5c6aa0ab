"""Reaches the server again for sessions that nobody calls at the moment.

A request notices that its connection has ended. A client that only loads and stores makes none: when its server
restarts it would stay away for longer than the server keeps its session, and lose its slabs. So one thread of the
process waits for the ends of control connections.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from contextlib import suppress
from typing import Final, Protocol

from farpool.protocol.errors import DeadlineExceeded, FarpoolError, ServerLost

__all__ = ["keep", "release"]

TRY_SECONDS: Final = 2.0
"""How long one try to reach a server lasts. A call that comes meanwhile joins it."""

LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries, in the end: well within the time that a server keeps sessions when it starts."""


class Kept(Protocol):
    """A session, as its keeper sees it."""

    @property
    def closed(self) -> bool: ...

    def is_connected(self) -> bool: ...

    def connection(self, deadline: float) -> object: ...


class _Keeper:
    """The thread, and the connections it watches. It keeps no session alive, and ends with the last."""

    def __init__(self) -> None:
        self._kept: dict[int, weakref.ref[Kept]] = {}
        self._epoll = select.epoll()
        self._ending = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._epoll.register(self._ending, select.EPOLLIN)
            self._thread = threading.Thread(target=self._run, name="farpool-keeper", daemon=True)
            self._thread.start()
        except BaseException:
            os.close(self._ending)
            raise

    def watch(self, session: Kept, fd: int) -> None:
        """See the end of the connection over *fd*; closed descriptors leave the epoll by themselves."""
        self.release(session)
        self._kept[fd] = weakref.ref(session)
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def release(self, session: Kept) -> bool:
        """Forget *session*; return whether any is left."""
        self._kept = {fd: kept for fd, kept in self._kept.items() if kept() not in (None, session)}
        return bool(self._kept)

    def end(self) -> None:
        """End the thread, and close what it holds."""
        os.eventfd_write(self._ending, 1)
        if threading.current_thread() is not self._thread:  # the collector may close a pool there too
            self._thread.join()

    def _run(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._ending:
                    self._epoll.close()
                    os.close(fd)
                    return
                kept = self._kept.get(fd)
                if kept is not None and _is_lost(kept()):
                    threading.Thread(target=_restore, args=(kept,), name="farpool-reconnect", daemon=True).start()


def _is_lost(session: Kept | None) -> bool:
    return session is not None and not session.closed and not session.is_connected()


def _restore(kept: weakref.ref[Kept]) -> None:
    """Connect again; whatever else than its absence speaks against it, the next call is told by itself."""
    pause = 0.0
    while _is_lost(session := kept()):
        assert session is not None
        try:
            session.connection(time.monotonic() + TRY_SECONDS)
        except (ServerLost, DeadlineExceeded):
            pass
        except FarpoolError:
            return
        del session
        time.sleep(pause)
        pause = min(2 * pause + 0.1, LONGEST_PAUSE)


_keeper: _Keeper | None = None
_lock = threading.RLock()  # a finalizer may close a pool where a connection is being made


def keep(session: Kept, fd: int) -> None:
    """Reconnect *session* when its connection over *fd* has ended; without threads or descriptors to spare, don't."""
    global _keeper
    with suppress(OSError, RuntimeError), _lock:
        if _keeper is None:
            _keeper = _Keeper()
        _keeper.watch(session, fd)


def release(session: Kept) -> None:
    """Leave *session* alone from now on."""
    global _keeper
    with _lock:
        if _keeper is not None and not _keeper.release(session):
            _keeper.end()
            _keeper = None


def _forget() -> None:
    """Leave the parent's keeper to it, in a child."""
    global _keeper, _lock
    _keeper, _lock = None, threading.RLock()


os.register_at_fork(after_in_child=_forget)
