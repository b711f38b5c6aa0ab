"""The messages of the control plane, each declared once and validated here.

A frame holds one array::

    [REQUEST, id, operation, {fields}]      client -> server; id 0 asks for no reply
    [REPLY,   id, {fields}]                 server -> client
    [ERROR,   id, kind, message, {details}] server -> client
    [EVENT,   kind, {fields}]               server -> client, unasked

Unknown fields are ignored, so that a newer peer can add some; a field of the wrong type is a
:class:`~farpool.protocol.errors.ProtocolError`. No I/O here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeVar

import msgspec

from farpool.protocol.commit_messages import Commit, Committed, DraftEnd, Reserve
from farpool.protocol.errors import FarpoolError, ProtocolError
from farpool.protocol.framing import encode_frame
from farpool.protocol.grant_messages import Grant, GrantInfo, GrantList, Grants, Revoke
from farpool.protocol.message_base import Done, Reply, Request
from farpool.protocol.quarantine import Quarantined, Release
from farpool.protocol.quota_messages import TenantLimit
from farpool.protocol.slab_messages import Attached, SlabInfo
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

PAGE_SLABS: Final = 1000
"""Slabs in one page of a listing: 1,000 of at most about 600 bytes stay well below a frame's limit."""


# What replies carry ---------------------------------------------------------------------------------------------


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One transport as the server offers it to one session."""

    transport: str
    available: bool
    reason: str = ""
    """Why it is not available, and what would mend it."""
    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """What the client half's ``probe`` needs: addresses, limits."""


class Welcome(Reply, frozen=True, kw_only=True):
    """The session is open."""

    protocol: int
    server: str
    session: int
    secret: bytes
    """With it this session is resumed, and its data planes opened. 32 random bytes."""
    tenant: str
    epoch: int
    """Counts the server's starts on this arena; a reply of an older epoch is stale."""
    resumed: bool
    heartbeat: float
    """Seconds between the heartbeats that keep the session alive."""
    session_timeout: float
    """Seconds of silence after which the session ends."""
    offers: list[Offer]
    signature: bytes = b""
    """Shows, where the client sent a proof, that the server knows the tenant too."""


class Negotiated(Reply, frozen=True, kw_only=True):
    """What the server half of a transport has answered."""

    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class SlabList(Reply, frozen=True, kw_only=True):
    """One page of slabs in the order of their ids."""

    slabs: list[SlabInfo]
    more: bool = False


class ServerStat(Reply, frozen=True, kw_only=True):
    """The pool's numbers. Bytes, seconds and counts."""

    server: str
    epoch: int
    pid: int
    uptime: float
    state: str
    """``serving`` or ``draining``."""
    arena: str
    capacity: int
    allocated: int
    reclaiming: int
    free: int
    slabs: int
    sessions: int
    cpu_seconds: float
    """CPU time of the server process so far, user and system."""
    transports: dict[str, dict[str, Any]]
    """By transport: ``available``, ``reason``, and the counters of its data plane."""
    addresses: list[str]
    quarantined: list[Quarantined] = msgspec.field(default_factory=list[Quarantined])


# Requests -------------------------------------------------------------------------------------------------------


class ResumeKey(msgspec.Struct, frozen=True, kw_only=True):
    """Names a session that lost its connection, and proves that it is ours."""

    session: int
    secret: bytes


class Hello(Request, frozen=True, kw_only=True):
    """Open a session, or resume one."""

    operation: ClassVar[str] = "hello"
    reply: ClassVar[type[Reply]] = Welcome
    protocol: int
    client: str
    tenant: str | None = None
    pid: int | None = None
    resume: ResumeKey | None = None
    proof: bytes = b""
    """Shows that the client has the token of the tenant in its challenge, which came just before."""


class Allocate(Request, frozen=True, kw_only=True):
    """Make a slab, and attach it in the same trip if ``transport`` names one."""

    operation: ClassVar[str] = "allocate"
    reply: ClassVar[type[Reply]] = Attached
    once: ClassVar[bool] = True
    nbytes: int
    name: str | None = None
    lease: str | float = "session"
    transport: str = ""
    atomics: str = ""
    """``cpu`` or ``rdma``; empty for the transport's own."""


class Open(Request, frozen=True, kw_only=True):
    """Find a slab by name or id, and attach it in the same trip if ``transport`` names one."""

    operation: ClassVar[str] = "open"
    reply: ClassVar[type[Reply]] = Attached
    name: str | None = None
    id: int | None = None
    mode: str = "rw"
    transport: str = ""
    exclusive: bool = False
    """Whether this session alone may have the slab attached from now on, until it lets go."""
    tenant: str | None = None
    """Whose slab it is; None for one of this tenant or, if it has none of that name, one that it was granted."""


class Attach(Request, frozen=True, kw_only=True):
    """Attach this very slab (again): another generation is a ``StaleSlab``."""

    operation: ClassVar[str] = "attach"
    reply: ClassVar[type[Reply]] = Attached
    id: int
    generation: int
    mode: str = "rw"
    transport: str
    memory: int = 0
    """Generation of the memory that is meant: another one is a ``StaleSlab`` too. 0 takes what the slab has now."""


class Negotiate(Request, frozen=True, kw_only=True):
    """The client half of ``transport`` has something to tell its server half."""

    operation: ClassVar[str] = "negotiate"
    reply: ClassVar[type[Reply]] = Negotiated
    transport: str
    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class Detach(Request, frozen=True, kw_only=True):
    """The client has let go of every mapping of this slab that it had over ``transport``."""

    operation: ClassVar[str] = "detach"
    reply: ClassVar[type[Reply]] = Done
    id: int
    generation: int
    transport: str
    exclusive: bool = False
    """Whether the session lets others attach the slab again that it had for itself."""


class Free(Request, frozen=True, kw_only=True):
    """End a slab's life."""

    operation: ClassVar[str] = "free"
    reply: ClassVar[type[Reply]] = Done
    id: int
    generation: int
    detached: str = ""
    """The transport over which the client has let go of it, as ``detach`` would say; empty if it has not."""
    memory: int = 0
    """Generation of the memory that it has let go of; 0 for what the slab has now."""


class Listing(Request, frozen=True, kw_only=True):
    """List the slabs that this tenant may see, ``after`` an id."""

    operation: ClassVar[str] = "list"
    reply: ClassVar[type[Reply]] = SlabList
    after: int = 0
    limit: int = PAGE_SLABS


class Stat(Request, frozen=True, kw_only=True):
    """Ask for the pool's numbers."""

    operation: ClassVar[str] = "stat"
    reply: ClassVar[type[Reply]] = ServerStat


class Heartbeat(Request, frozen=True, kw_only=True):
    """I am alive: keep my session, and renew my leases. Sent with id 0."""

    operation: ClassVar[str] = "heartbeat"
    reply: ClassVar[type[Reply]] = Done


class Goodbye(Request, frozen=True, kw_only=True):
    """End the session now; its session slabs are freed."""

    operation: ClassVar[str] = "goodbye"
    reply: ClassVar[type[Reply]] = Done
    mapped: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])
    """Slabs, by id and generation, that the process keeps mapped beyond the session: views of them are alive."""


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


# Wire -----------------------------------------------------------------------------------------------------------

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
