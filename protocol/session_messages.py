"""The messages of sessions: how one begins, agrees on its transports, stays alive and ends."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from farpool.protocol.message_base import Done, Reply, Request

__all__ = ["Goodbye", "Heartbeat", "Hello", "Negotiate", "Negotiated", "Offer", "ResumeKey", "Welcome"]


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


class Negotiated(Reply, frozen=True, kw_only=True):
    """What the server half of a transport has answered."""

    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class Negotiate(Request, frozen=True, kw_only=True):
    """The client half of ``transport`` has something to tell its server half."""

    operation: ClassVar[str] = "negotiate"
    reply: ClassVar[type[Reply]] = Negotiated
    transport: str
    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


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
