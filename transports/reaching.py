"""From the name of a host to a socket connected to it, by a deadline: all that a client dials over TCP.

A name server may say nothing, and of a host's addresses some may be silent: whatever that costs comes off one deadline.
A name is looked up in a thread, since nothing bounds the C library's resolver. Addresses are tried one after the other,
each a moment after the one before, and the first that answers is taken (RFC 8305).
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, TransportUnavailable

__all__ = ["reach"]

Found = tuple[int, int, int, str, Any]
"""What ``getaddrinfo`` says of one address: family, type, protocol, a name, and what ``connect`` takes."""

TURN_SECONDS: Final = 0.25
"""How long an address is tried alone, at most; then the next is tried beside it (RFC 8305, section 5)."""

LONGEST_LOOK: Final = 3600.0
"""Seconds that one look at the sockets may take; poll(2) counts milliseconds in 31 bits."""

_lookups: dict[tuple[str, int], Future[Sequence[Found]]] = {}
"""Those under way: however often a silent name server is asked for a name, one thread waits for its answer."""

os.register_at_fork(after_in_child=_lookups.clear)  # their threads are the parent's


def reach(host: str, port: int, deadline: float, label: str) -> socket.socket:
    """Return a blocking socket connected to *host*; *label* says in errors what it is.

    Raises:
        DeadlineExceeded: the name server, or no address, has answered before *deadline*.
        OSError: there is no such host, or none of its addresses lets us in; the text has each with its reason.
    """
    waiting = deque(_addresses_of(host, port, deadline))
    with _Attempts() as attempts:
        while waiting or attempts:
            if waiting and not attempts.begin(waiting.popleft()):
                continue
            left = _left(deadline)
            opened = attempts.first_open(min(left / (1 + len(waiting)), TURN_SECONDS) if waiting else left)
            if opened is not None:
                return opened
            if not _left(deadline):
                raise DeadlineExceeded(
                    f"{label} has not answered in time (tried {attempts.tried()}); is the host up, and the port open? "
                    "else raise timeout="
                )
    raise attempts.refusal(host)


# Names ----------------------------------------------------------------------------------------------------------


def _addresses_of(host: str, port: int, deadline: float) -> Sequence[Found]:
    """Return the addresses of *host*, the likeliest first; one that is a number itself asks nobody."""
    with suppress(socket.gaierror):
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except UnicodeError as error:
            raise InvalidArgument(f"{host!r} is no name that a host can have ({error})") from None
    mine: Future[Sequence[Found]] = Future()
    lookup = _lookups.setdefault((host, port), mine)
    if lookup is mine:
        _start_lookup(mine, host, port)
    try:
        return lookup.result(_left(deadline))
    except TimeoutError:
        raise DeadlineExceeded(
            f"the name {host} was not looked up in time; do the name servers answer (/etc/resolv.conf)? "
            "else name the host by its address, or raise timeout="
        ) from None


def _start_lookup(lookup: Future[Sequence[Found]], host: str, port: int) -> None:
    """Look a name up in a thread that keeps no process alive."""

    def run() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except BaseException as error:  # noqa: BLE001  whoever waits raises it
            lookup.set_exception(error)
        else:
            lookup.set_result(found)
        finally:
            _lookups.pop((host, port), None)

    try:
        threading.Thread(target=run, name="farpool-lookup", daemon=True).start()
    except BaseException as error:
        _lookups.pop((host, port), None)
        if isinstance(error, RuntimeError):
            raise TransportUnavailable(f"no thread can look {host} up ({error}); see ulimit -u") from error
        raise


# Addresses ------------------------------------------------------------------------------------------------------


class _Attempts:
    """Sockets that are being connected to the addresses of one host. All that are left at the end are closed."""

    def __init__(self) -> None:
        self._selector = selectors.PollSelector()
        self._outcomes: dict[str, OSError | None] = {}

    def __bool__(self) -> bool:
        return bool(self._selector.get_map())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for key in list(self._selector.get_map().values()):
            _socket_of(key).close()
        self._selector.close()

    def begin(self, found: Found) -> bool:
        """Begin to connect; return False if that has failed already."""
        family, kind, proto, _, target = found
        name = str(target[0])
        self._outcomes[name] = None
        try:
            peer = socket.socket(family, kind, proto)
        except OSError as error:  # a family that this host does not have, or no descriptor
            self._outcomes[name] = error
            return False
        self._selector.register(peer, selectors.EVENT_WRITE, name)  # first: from here on its end is seen to
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = peer.connect_ex(target)
        if code in (0, errno.EINPROGRESS):
            return True
        self._give_up(peer, name, code)
        return False

    def first_open(self, seconds: float) -> socket.socket | None:
        """Wait for at most *seconds*, and return a socket if one is connected by then; those that failed go."""
        for key, _ in self._selector.select(min(seconds, LONGEST_LOOK)):
            peer = _socket_of(key)
            code = peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                peer.setblocking(True)
                self._selector.unregister(peer)
                return peer
            self._give_up(peer, str(key.data), code)
        return None

    def _give_up(self, peer: socket.socket, name: str, code: int) -> None:
        self._outcomes[name] = OSError(code, os.strerror(code))
        self._selector.unregister(peer)
        peer.close()

    def tried(self) -> str:
        """Return which addresses were tried, each with the reason if it has failed."""
        return ", ".join(
            name if error is None else f"{name}: {error.strerror}" for name, error in self._outcomes.items()
        )

    def refusal(self, host: str) -> OSError:
        """Return why the last one failed, in words for all of them unless the host was named by its one address."""
        last = [error for error in self._outcomes.values() if error is not None][-1]
        return last if list(self._outcomes) == [host] else OSError(last.errno, self.tried())


def _socket_of(key: selectors.SelectorKey) -> socket.socket:
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj


def _left(deadline: float) -> float:
    return min(max(deadline - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
