"""What client and server say to each other when a descriptor is passed: one packet each way.

A ``SOCK_SEQPACKET`` Unix socket keeps packets whole. The request names the session and proves it with the session's
secret; slab id 0 asks for the arena's generation file. The answer carries the descriptor as ancillary data. A request
of session 0, which is nobody's, asks only which arena answers.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

from farpool.protocol.errors import ProtocolError, QuotaExceeded

__all__ = ["ANSWER_BYTES", "GENERATIONS", "NOBODY", "PROBE", "REQUEST_BYTES", "DescriptorAnswer", "DescriptorRequest"]

GENERATIONS: Final = 0
"""The slab id that stands for the generation file."""

NOBODY: Final = 0
"""The session of a probe; no session has this number."""

_REQUEST = struct.Struct("<4sIQQQ32s")
_ANSWER = struct.Struct("<4sI16s")
_MAGIC: Final = b"FPd1"
REQUEST_BYTES: Final = _REQUEST.size
ANSWER_BYTES: Final = _ANSWER.size

OK: Final = 0
REFUSED: Final = 1
STALE: Final = 2
NO_DESCRIPTORS: Final = 3
NAMED: Final = 4
"""The answer to a probe: it names the arena, and carries nothing."""
SESSION_FULL: Final = 5
"""The session has as many connections as one may; the answer's number is how many."""
TENANT_FULL: Final = 6
"""Its tenant has that many, and no tenant may have more than are left for others."""
SERVER_FULL: Final = 7
"""The server has as many as it may."""

_STATUS_BITS: Final = 8


def with_number(status: int, number: int) -> int:
    """Return *status* with a number in the bits that it leaves."""
    return status | min(number, (1 << 32 - _STATUS_BITS) - 1) << _STATUS_BITS


def without_number(status: int) -> tuple[int, int]:
    """Return the two apart."""
    return status & (1 << _STATUS_BITS) - 1, status >> _STATUS_BITS


_FULL: Final = {
    SESSION_FULL: "this session has {} connections to the server's descriptor socket, as many as one may have; close "
    "some, or have the server's max_session_connections raised: [transport_settings.cxl]",
    TENANT_FULL: "this tenant has {} connections to the server's descriptor socket, and no tenant may have more than "
    "are left for others; close some pools, or have the server's max_connections raised: [transport_settings.cxl]",
    SERVER_FULL: "the server's descriptor socket has {} connections, as many as it may have; close some pools, or have "
    "the server's max_connections raised ([transport_settings.cxl], and LimitNOFILE)",
}


def refusal_for_number(status: int) -> QuotaExceeded | None:
    """Return what a status means that says that there are too many connections, None for any other."""
    kind, number = without_number(status)
    return QuotaExceeded(_FULL[kind].format(number), limit=number) if kind in _FULL else None


@dataclass(frozen=True, slots=True)
class DescriptorRequest:
    """Asks for one descriptor. ``writable`` must be what the control plane granted."""

    session: int
    secret: bytes
    slab: int = GENERATIONS
    generation: int = 0
    writable: bool = False

    def encode(self) -> bytes:
        """Return the packet."""
        return _REQUEST.pack(_MAGIC, self.writable, self.session, self.slab, self.generation, self.secret)

    @classmethod
    def decode(cls, packet: bytes) -> DescriptorRequest:
        """Return the request in *packet*; raises :class:`ProtocolError` for anything else."""
        if len(packet) != REQUEST_BYTES or not packet.startswith(_MAGIC):
            raise ProtocolError(f"a packet of {len(packet)} bytes is no request for a descriptor")
        _, writable, session, slab, generation, secret = _REQUEST.unpack(packet)
        return cls(session=session, secret=secret, slab=slab, generation=generation, writable=bool(writable))


@dataclass(frozen=True, slots=True)
class DescriptorAnswer:
    """Tells how it went, and which arena answers: 16 random bytes that the offer named too."""

    status: int
    arena: bytes

    def encode(self) -> bytes:
        """Return the packet."""
        return _ANSWER.pack(_MAGIC, self.status, self.arena)

    @classmethod
    def decode(cls, packet: bytes) -> DescriptorAnswer:
        """Return the answer in *packet*; raises :class:`ProtocolError` for anything else."""
        if len(packet) != ANSWER_BYTES or not packet.startswith(_MAGIC):
            raise ProtocolError(f"a packet of {len(packet)} bytes is no answer to a request for a descriptor")
        _, status, arena = _ANSWER.unpack(packet)
        return cls(status=status, arena=arena)


PROBE: Final = DescriptorRequest(session=NOBODY, secret=bytes(32))
"""Asks which arena answers, and for no descriptor."""


def send_answer(connection: socket.socket, answer: DescriptorAnswer, descriptor: int | None) -> None:
    """Send *answer*, with *descriptor* beside it if there is one. Never blocks; raises ``OSError``."""
    socket.send_fds(
        connection,
        [answer.encode()],
        [] if descriptor is None else [descriptor],
        socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL,
    )
