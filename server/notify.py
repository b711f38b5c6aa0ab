"""Tell systemd how the server is: ``sd_notify(3)`` in its plain form."""

from __future__ import annotations

import contextlib
import os
import socket
import time

__all__ = ["notify", "notify_reloading"]


def notify(state: str) -> None:
    """Send *state*, such as ``READY=1``, to the service manager, if one waits for it."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path or path[0] not in "/@":
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + path[1:] if path[0] == "@" else path)
        channel.sendall(state.encode())


def notify_reloading() -> None:
    """Say that the settings are being read again; ``READY=1`` must follow."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
