"""The one tree of errors, the same classes on the server, on the wire and in the client.

An error travels as its class name, its message and a map of numbers; :func:`from_wire` makes it again. Each class
is also a subclass of the builtin that a Python user would catch. Messages say what was asked, what the limit was
and what to do next. This module imports nothing but the standard library.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

__all__ = [
    "AuthenticationFailed",
    "CorruptData",
    "DeadlineExceeded",
    "FarpoolError",
    "ForkedSession",
    "InvalidArgument",
    "NameTaken",
    "NotMappable",
    "OutOfBounds",
    "PermissionDenied",
    "PoolFull",
    "ProtocolError",
    "QuotaExceeded",
    "ReadOnly",
    "RegionInUse",
    "ServerLost",
    "SlabBusy",
    "SlabNotFound",
    "StaleSlab",
    "TransportUnavailable",
    "UnsuitableBuffer",
    "WrongAtomicDomain",
    "from_wire",
    "out_of_descriptors",
]


class FarpoolError(Exception):
    """Base of every error that Farpool raises.

    ``details`` holds the numbers of the message (bytes asked, bytes free, ...) for a program to read.
    """

    kinds: ClassVar[dict[str, type[FarpoolError]]] = {}

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == __name__:
            cls.kinds[cls.__name__] = cls

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(kind: type[FarpoolError], message: str, details: dict[str, Any]) -> FarpoolError:
    return kind(message, **details)


class InvalidArgument(FarpoolError, ValueError):
    """A size, name, offset or address that can never be right, whatever the state of the pool."""


class UnsuitableBuffer(FarpoolError, TypeError):
    """The object has no bytes to read from, or none that may be written to."""


class WrongAtomicDomain(FarpoolError, ValueError):
    """The slab's words belong to the atomics of another domain: a CPU's and a device's are not atomic together."""


class PoolFull(FarpoolError, MemoryError):
    """The pool has no room for the slab; the message states bytes asked, free and in all."""


class QuotaExceeded(FarpoolError, MemoryError):
    """The tenant's quota, not the pool's capacity, refuses the slab, session or request; the message has numbers."""


class SlabNotFound(FarpoolError, LookupError):
    """No slab of that name or id is visible to this tenant."""


class NameTaken(FarpoolError, FileExistsError):
    """Another slab of this tenant has the name already."""


class StaleSlab(FarpoolError, LookupError):
    """The handle's slab was freed, revoked or has expired, or the session that had it attached has ended."""


class SlabBusy(FarpoolError, BlockingIOError):
    """Another session has the slab attached, and one of the two wants it for itself alone."""


class OutOfBounds(FarpoolError, IndexError):
    """The range reaches past the slab's end; no byte was moved."""


class ReadOnly(FarpoolError, PermissionError):
    """A write or an atomic through a grant that allows reading only."""


class PermissionDenied(FarpoolError, PermissionError):
    """The server knows who asks, and refuses."""


class AuthenticationFailed(FarpoolError, PermissionError):
    """The server does not accept the session's secret or credentials."""


class ProtocolError(FarpoolError, ValueError):
    """The peer sent what the protocol does not allow, or speaks a version we don't."""


class TransportUnavailable(FarpoolError, OSError):
    """The transport asked for cannot be used here; the message says why and what would mend it."""


class NotMappable(FarpoolError, BufferError):
    """This transport cannot show the slab as local memory; read it, or attach it over cxl."""


class RegionInUse(FarpoolError, BufferError):
    """The slab cannot be let go while arrays or memoryviews made from it are alive."""


class ServerLost(FarpoolError, ConnectionError):
    """The server's connection ended in mid-operation. The outcome of a write or an atomic is unknown."""


class DeadlineExceeded(FarpoolError, TimeoutError):
    """The operation did not end within its ``timeout``. The outcome of a write or an atomic is unknown."""


class ForkedSession(FarpoolError, RuntimeError):
    """The handle belongs to the parent process; a forked child connects for itself."""


class CorruptData(FarpoolError, ValueError):
    """The bytes read do not have the checksum that was recorded with them."""


def from_wire(kind: str, message: str, details: dict[Any, Any]) -> FarpoolError:
    """Make the error that a peer named; an unknown kind becomes a plain :class:`FarpoolError`."""
    cls = FarpoolError.kinds.get(kind, FarpoolError)
    return cls(message, **{key: value for key, value in details.items() if isinstance(key, str)})


def out_of_descriptors(error: BaseException) -> TransportUnavailable | None:
    """Return what to raise instead of *error* if that says that this process may open no more files, else None."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return TransportUnavailable("this process is at its limit of open files; close some, or raise it: ulimit -n")
    return None
