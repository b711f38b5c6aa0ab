"""The other end of the raw ping-pong, in a process of its own as the pool's server is: loops in C, no GIL.

``python -m farpool.perf.limit_server`` listens on a loopback port, prints its number, serves one connection
after the other, and ends with its stdin. A connection begins with two little-endian 8-byte numbers: bytes
of a request, bytes of a reply.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Final

from farpool import FarpoolError
from farpool.native import limits
from farpool.perf.walk import SLAB_NBYTES, filled, window

__all__ = ["PLAN", "serve"]

PLAN: Final = struct.Struct("<QQ")
SILENCE_SECONDS: Final = 60.0
"""A peer that is silent so long has its connection closed; between two rounds it is silent for seconds."""
PLAN_SECONDS: Final = 5.0


def serve(listener: socket.socket, ended: int) -> None:
    """Serve one connection after the other until the descriptor *ended* is readable."""
    inbox, outbox = memoryview(filled(SLAB_NBYTES)), memoryview(filled(SLAB_NBYTES))
    while ended not in select.select([listener.fileno(), ended], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            try:
                _serve_one(connection, inbox, outbox)
            except (FarpoolError, OSError, struct.error):
                continue  # the peer's own loop says what went wrong


def _serve_one(connection: socket.socket, inbox: memoryview, outbox: memoryview) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(PLAN_SECONDS)
    request_nbytes, reply_nbytes = PLAN.unpack(connection.recv(PLAN.size, socket.MSG_WAITALL))
    connection.settimeout(None)
    limits.serve_round_trips(
        connection.fileno(),
        inbox[: window(request_nbytes)],
        request_nbytes,
        outbox[: window(reply_nbytes)],
        reply_nbytes,
        SILENCE_SECONDS,
    )


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        serve(server, sys.stdin.fileno())
