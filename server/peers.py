"""Who is on the other end of a control connection, and whether that process still lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from farpool.protocol.errors import ProtocolError

__all__ = ["Peer", "ProcessWatch", "duplicate", "lacks_descriptors", "pass_descriptors", "peer_of"]

_CREDENTIALS = struct.Struct("iII")
"""``struct ucred``: pid, uid, gid (unix(7))."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection; ``pid`` and ``uid`` are the kernel's word, for Unix sockets alone."""

    address: str
    pid: int | None = None
    uid: int | None = None
    certificate_name: str | None = None
    """Name in the client's certificate, if TLS has verified one."""

    @property
    def administrator(self) -> bool:
        """Whether it is a local process of the server's own user, or of root."""
        return self.uid is not None and self.uid in (0, os.geteuid())

    def __str__(self) -> str:
        return self.address

    @property
    def host(self) -> str:
        """Its host's address; ``""`` is this machine."""
        return "" if self.uid is not None else self.address.rpartition(":")[0].strip("[]")


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Return who is connected through *transport*."""
    kernel_socket = transport.get_extra_info("socket")
    if kernel_socket is not None and kernel_socket.family == socket.AF_UNIX:
        # uvloop's socket object has no getsockopt; ours borrows the descriptor, since there may be none left.
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=kernel_socket.fileno())
        try:
            credentials = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        finally:
            ours.detach()
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        # A process of another pid namespace is shown as 0.
        return Peer(f"unix:pid={pid},uid={uid}", pid or None, uid)
    name = transport.get_extra_info("peername")
    if not name:
        return Peer("unknown")
    host, port = name[0], name[1]
    return Peer(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def lacks_descriptors(transport: asyncio.BaseTransport, spare: int) -> bool:
    """Tell whether fewer than *spare* descriptors are left; the kernel gives each new one the lowest free number."""
    kernel_socket = transport.get_extra_info("socket")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return kernel_socket is not None and limit != resource.RLIM_INFINITY and kernel_socket.fileno() >= limit - spare


def pass_descriptors(transport: asyncio.Transport, frame: bytes, descriptors: Sequence[int]) -> None:
    """Send *frame* with *descriptors* now, over a Unix socket with nothing unsent."""
    kernel_socket = transport.get_extra_info("socket")
    if transport.get_write_buffer_size() or kernel_socket.family != socket.AF_UNIX:
        raise ProtocolError("descriptors pass over a Unix socket alone, to who reads what it is sent")
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=kernel_socket.fileno())
    try:
        socket.send_fds(ours, [frame], list(descriptors))
    finally:
        ours.detach()


def duplicate(transport: asyncio.Transport) -> int:
    """Return a descriptor that keeps the connection open after *transport* has closed; the caller closes it."""
    return os.dup(transport.get_extra_info("socket").fileno())


class ProcessWatch:
    """Calls *died* from the loop when the process *pid* has ended. ``close`` may be called twice."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int, died: Callable[[], None]) -> None:
        self._loop = loop
        self._died = died
        self._fd = -1
        # ProcessLookupError: dead already, its connection tells. EMFILE: the end of the connection has to do.
        with contextlib.suppress(OSError):
            self._fd = os.pidfd_open(pid)
            loop.add_reader(self._fd, self._ended)

    def _ended(self) -> None:
        self.close()
        self._died()

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
