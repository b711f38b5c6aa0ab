"""What both halves say to each other: fixed headers, little-endian, and how to receive all of one."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

Left = Callable[[], float]
"""Seconds that are left of an operation; with 0 what has come already is still taken."""

Patience = Callable[[], float | None]
"""The same, or None: for ever."""

CHUNK = 1 << 20
"""Most bytes in one request; longer reads and writes are cut, so that neither side holds more."""

HELLO = struct.Struct("<8sQ32s")
"""Magic, session, the session's secret."""

MAGIC = b"fpstream"
REQUEST = struct.Struct("<BQQQQQQ")
ANSWER = struct.Struct("<BQ")


class Operation(IntEnum):
    """What a client may ask for. The payload of a write follows its request."""

    READ = 1
    WRITE = 2
    LOAD = 3
    STORE = 4
    FETCH_ADD = 5
    COMPARE_SWAP = 6


class Status(IntEnum):
    """How a request ended. The bytes of a read follow its answer."""

    OK = 0
    STALE = 1
    READ_ONLY = 2
    OUT_OF_BOUNDS = 3


class Request(NamedTuple):
    """One request as it travels."""

    operation: int
    slab: int
    generation: int
    offset: int
    length: int
    """Bytes; 8 for words."""
    operand: int = 0
    expected: int = 0


class PeerEndedError(ConnectionError):
    """The other side closed the connection, in the middle of a message or between two."""


def receive_into(peer: socket.socket, target: Bytes, left: Patience) -> None:
    """Fill *target*."""
    done = 0
    while done < target.nbytes:
        peer.settimeout(left())
        count = peer.recv_into(target[done:].data)
        if not count:
            raise PeerEndedError(f"the connection ended after {done} of {target.nbytes} bytes")
        done += count


def receive(peer: socket.socket, nbytes: int, left: Patience) -> bytes:
    """Return exactly *nbytes* new bytes."""
    target: Bytes = np.empty(nbytes, np.uint8)
    receive_into(peer, target, left)
    return target.tobytes()
