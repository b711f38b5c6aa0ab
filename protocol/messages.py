"""The messages of the control plane: declared once each, in the file of their subject, and validated here.

A frame holds one array::

    [REQUEST, id, operation, {fields}]      client -> server; id 0 asks for no reply
    [REPLY,   id, {fields}]                 server -> client
    [ERROR,   id, kind, message, {details}] server -> client
    [EVENT,   kind, {fields}]               server -> client, unasked

Unknown fields are ignored, so that a newer peer can add some; a field of the wrong type is a
:class:`~farpool.protocol.errors.ProtocolError`. No I/O here.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from farpool.protocol.commit_messages import Commit, Committed, DraftEnd, Reserve
from farpool.protocol.errors import FarpoolError, ProtocolError
from farpool.protocol.framing import encode_frame
from farpool.protocol.grant_messages import Grant, GrantInfo, GrantList, Grants, Revoke
from farpool.protocol.message_base import Done, Reply, Request
from farpool.protocol.quarantine import Quarantined, Release
from farpool.protocol.quota_messages import TenantLimit
from farpool.protocol.session_messages import (
    Goodbye,
    Heartbeat,
    Hello,
    Negotiate,
    Negotiated,
    Offer,
    ResumeKey,
    Welcome,
)
from farpool.protocol.slab_messages import Allocate, Attach, Attached, Detach, Free, Listing, Open, SlabInfo, SlabList
from farpool.protocol.stat_messages import ServerStat, Stat
from farpool.protocol.takeover_messages import Inheritance, LetGo, Takeover
from farpool.protocol.tenant_messages import (
    Challenge,
    Challenged,
    TenantAdd,
    TenantInfo,
    TenantList,
    TenantListing,
    TenantRemove,
    TenantRotate,
)
from farpool.protocol.waiting_messages import Notify, Wait, Watch, Word

__all__ = [
    "ERROR",
    "EVENT",
    "OPERATIONS",
    "PROTOCOL_VERSION",
    "REPLY",
    "REQUEST",
    "Allocate",
    "Attach",
    "Attached",
    "Challenge",
    "Challenged",
    "Commit",
    "Committed",
    "Detach",
    "Done",
    "DraftEnd",
    "Event",
    "Free",
    "Goodbye",
    "Grant",
    "GrantInfo",
    "GrantList",
    "Grants",
    "Heartbeat",
    "Hello",
    "Inheritance",
    "LetGo",
    "Listing",
    "Negotiate",
    "Negotiated",
    "Notify",
    "Offer",
    "Open",
    "Quarantined",
    "Release",
    "Reply",
    "Request",
    "Reserve",
    "ResumeKey",
    "Revoke",
    "ServerStat",
    "SlabInfo",
    "SlabList",
    "Stat",
    "Takeover",
    "TenantAdd",
    "TenantInfo",
    "TenantLimit",
    "TenantList",
    "TenantListing",
    "TenantRemove",
    "TenantRotate",
    "Wait",
    "Watch",
    "Welcome",
    "Word",
    "decode_reply_fields",
    "decode_request",
    "encode_error",
    "encode_event",
    "encode_reply",
    "encode_request",
]

PROTOCOL_VERSION: Final = 1
REQUEST: Final = 0
REPLY: Final = 1
ERROR: Final = 2
EVENT: Final = 3

OPERATIONS: Final[dict[str, type[Request]]] = {
    cls.operation: cls
    for cls in (
        *(Challenge, Hello, Allocate, Open, Attach, Negotiate, Detach, Free, Listing, Stat, Heartbeat, Goodbye),
        *(Reserve, Commit),
        *(Grant, Revoke, Grants),
        *(Wait, Watch, Notify),
        *(Takeover, LetGo),
        *(Release, TenantAdd, TenantListing, TenantRotate, TenantRemove, TenantLimit),
    )
}


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the server tells unasked: ``kind`` is revoked, expired, replaced or draining."""

    kind: str
    fields: dict[str, Any] = {}


R = TypeVar("R", bound=Reply)


def encode_request(request_id: int, request: Request) -> bytes:
    """Return the frame of *request*."""
    return encode_frame([REQUEST, request_id, request.operation, msgspec.to_builtins(request, builtin_types=(bytes,))])


def encode_reply(request_id: int, reply: Reply) -> bytes:
    """Return the frame of *reply* to the request of that id."""
    return encode_frame([REPLY, request_id, msgspec.to_builtins(reply, builtin_types=(bytes,))])


def encode_error(request_id: int, error: FarpoolError) -> bytes:
    """Return the frame that carries *error*; subclasses that are not in the tree travel as their nearest base."""
    kind = next(
        cls.__name__ for cls in type(error).__mro__ if cls.__name__ in FarpoolError.kinds or cls is FarpoolError
    )
    return encode_frame([ERROR, request_id, kind, error.message[:4096], error.details])


def encode_event(kind: str, **fields: Any) -> bytes:
    """Return the frame of an event."""
    return encode_frame([EVENT, kind, fields])


def request_id_of(message: list[Any]) -> int:
    """Return the id of a request's array.

    Raises:
        ProtocolError: not a request, or its id is no unsigned 64-bit number.
    """
    if len(message) != 4 or message[0] is False or message[0] != REQUEST:
        raise ProtocolError("a client may send requests only: [0, id, operation, {fields}]")
    request_id = message[1]
    if not isinstance(request_id, int) or isinstance(request_id, bool) or not 0 <= request_id < 1 << 64:
        raise ProtocolError("a request's id is an unsigned 64-bit number")
    return request_id


def decode_request(message: list[Any]) -> Request:
    """Return the request that *message* holds (see :func:`request_id_of` for its frame).

    Raises:
        ProtocolError: an unknown operation, or a field of the wrong type; the connection can go on.
    """
    operation, fields = message[2], message[3]
    cls = OPERATIONS.get(operation) if isinstance(operation, str) else None
    if cls is None:
        raise ProtocolError(f"unknown operation {operation!r:.80}; this server knows {', '.join(OPERATIONS)}")
    try:
        return msgspec.convert(fields, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"{operation}: {error}") from None


def decode_reply_fields(cls: type[R], fields: object) -> R:
    """Return the reply of type *cls*.

    Raises:
        ProtocolError: the peer's fields are not those of *cls*.
    """
    try:
        return msgspec.convert(fields, cls)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ProtocolError(f"the server's reply is not a {cls.__name__}: {error}") from None
