"""The messages about tenants: how a client proves to be one's, and what an administrator asks about them."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from farpool.protocol.message_base import Done, Reply, Request

__all__ = [
    "DEFAULT_TENANT",
    "PAGE_TENANTS",
    "Challenge",
    "Challenged",
    "TenantAdd",
    "TenantInfo",
    "TenantList",
    "TenantListing",
    "TenantRemove",
    "TenantRotate",
]

DEFAULT_TENANT: Final = "default"
"""Of a client that names none."""

PAGE_TENANTS: Final = 1000
"""Tenants in one page of a listing."""


class Challenged(Reply, frozen=True, kw_only=True):
    """The server's part of the exchange that a proof is made over."""

    nonce: bytes
    """32 random bytes, whether there is such a tenant or not; good for the next hello of this connection alone."""


class Challenge(Request, frozen=True, kw_only=True):
    """I am going to prove that I have the token of ``tenant``. Before hello."""

    operation: ClassVar[str] = "challenge"
    reply: ClassVar[type[Reply]] = Challenged
    tenant: str
    nonce: bytes
    """32 random bytes."""


class TenantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What an administrator is told of a tenant. Bytes, counts, requests a second; a limit of None is none."""

    name: str
    token: bool
    """Whether it has one."""
    uids: list[int] = msgspec.field(default_factory=list[int])
    """Users of the server's host that need no token, as the configuration says."""
    certificates: list[str] = msgspec.field(default_factory=list[str])
    """Names in client certificates that need no token, as the configuration says."""
    sessions: int = 0
    slabs: int = 0
    nbytes: int = 0
    """Charged to it, with what is reclaiming."""
    max_bytes: int | None = None
    max_slabs: int | None = None
    max_sessions: int | None = None
    max_rate: float | None = None


class TenantList(Reply, frozen=True, kw_only=True):
    """One page of tenants in the order of their names."""

    tenants: list[TenantInfo]
    more: bool = False


class TenantAdd(Request, frozen=True, kw_only=True):
    """Make a tenant. For administrators."""

    operation: ClassVar[str] = "tenant_add"
    reply: ClassVar[type[Reply]] = Done
    administrative: ClassVar[bool] = True
    tenant: str
    verifier: bytes | None = None
    """Of its token, which stays with the administrator; None for a tenant without one."""


class TenantListing(Request, frozen=True, kw_only=True):
    """List the tenants ``after`` a name. For administrators."""

    operation: ClassVar[str] = "tenant_list"
    reply: ClassVar[type[Reply]] = TenantList
    administrative: ClassVar[bool] = True
    after: str = ""


class TenantRotate(Request, frozen=True, kw_only=True):
    """Give a tenant another token: the one before opens no session any more. For administrators."""

    operation: ClassVar[str] = "tenant_rotate"
    reply: ClassVar[type[Reply]] = Done
    administrative: ClassVar[bool] = True
    tenant: str
    verifier: bytes
    end_sessions: bool = False
    """Whether the sessions that it has end too."""


class TenantRemove(Request, frozen=True, kw_only=True):
    """Remove a tenant. For administrators."""

    operation: ClassVar[str] = "tenant_remove"
    reply: ClassVar[type[Reply]] = Done
    administrative: ClassVar[bool] = True
    tenant: str
    force: bool = False
    """Whether its sessions and slabs end; without it, a tenant that has some stays."""
