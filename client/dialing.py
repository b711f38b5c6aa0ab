"""From a URL, or none, to a connected stream socket. Nothing here speaks the protocol."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Mapping
from typing import Final

from farpool.client.deadlines import seconds_left
from farpool.protocol.addresses import DEFAULT_PORT, Address, default_socket_path, parse_address
from farpool.protocol.errors import DeadlineExceeded, PermissionDenied
from farpool.transports.reaching import reach

__all__ = ["dial", "find_address"]

BUSY_PAUSE: Final = 0.010
"""Seconds before a Unix socket whose queue is full is tried again."""


def find_address(url: str | None, environment: Mapping[str, str] | None = None) -> Address:
    """Return the address of *url*, or where a pool is by default.

    Without a URL: ``FARPOOL_URL``, else the default Unix socket if there is one, else 127.0.0.1:7700.

    Raises:
        InvalidArgument: the URL (or ``FARPOOL_URL``) is none of ours.
    """
    environment = os.environ if environment is None else environment
    url = url if url is not None else environment.get("FARPOOL_URL") or None
    if url is not None:
        return parse_address(url)
    path = default_socket_path(environment, os.getuid())
    if _is_socket(path):
        return Address(path=path)
    return Address(host="127.0.0.1", port=DEFAULT_PORT)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116  one call, and no Path to build
    except OSError:
        return False


def dial(address: Address, deadline: float) -> int:
    """Connect, and return the descriptor of the blocking socket; the caller owns it.

    Raises:
        PermissionDenied: the Unix socket does not admit this user.
        DeadlineExceeded: nobody has answered before *deadline*.
        OSError: nobody listens there.
    """
    try:
        if address.path:
            return _dial_unix(address.path, deadline)
        return reach(address.host, address.port, deadline, str(address)).detach()
    except PermissionError as error:
        raise PermissionDenied(
            f"this user (uid {os.getuid()}) may not open {address}: {error.strerror}; "
            "run as the server's user, or let the server widen its socket mode"
        ) from error


def _dial_unix(path: str, deadline: float) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        while True:
            peer.settimeout(max(seconds_left(deadline), 0.001))
            try:
                peer.connect(path)
            except BlockingIOError:  # its queue of connections is full
                if not seconds_left(deadline):
                    raise DeadlineExceeded(
                        f"unix://{path} has not answered in time: its queue of connections stayed full; is the server "
                        "stopped, or overloaded? else raise timeout="
                    ) from None
                time.sleep(min(BUSY_PAUSE, seconds_left(deadline)))
            else:
                peer.settimeout(None)
                return peer.detach()
