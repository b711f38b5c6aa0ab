"""The messages of grants: a tenant lets another one attach a slab of its own."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from farpool.protocol.message_base import Done, Reply, Request

__all__ = ["MOST_GRANTS", "Grant", "GrantInfo", "GrantList", "Grants", "Revoke"]

MOST_GRANTS: Final = 1000
"""Grants of one slab, so that all of them fit into one reply."""


class GrantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's right to a slab that is not its own."""

    tenant: str
    mode: str
    """``r`` or ``rw``."""
    expires_in: float | None = None
    """Seconds until it ends; None for one that ends with the slab."""


class GrantList(Reply, frozen=True, kw_only=True):
    """The grants of one slab in the order of their tenants."""

    grants: list[GrantInfo]


class Grant(Request, frozen=True, kw_only=True):
    """Let ``tenant`` attach this slab of mine; an earlier grant of it is replaced."""

    operation: ClassVar[str] = "grant"
    reply: ClassVar[type[Reply]] = Done
    audited: ClassVar[bool] = True
    id: int
    generation: int
    tenant: str
    mode: str = "r"
    expires: float | None = None
    """Seconds until it ends; None for one that ends with the slab."""


class Revoke(Request, frozen=True, kw_only=True):
    """Take this slab of mine from ``tenant``: answered once its sessions reach it no more."""

    operation: ClassVar[str] = "revoke"
    reply: ClassVar[type[Reply]] = Done
    audited: ClassVar[bool] = True
    id: int
    generation: int
    tenant: str


class Grants(Request, frozen=True, kw_only=True):
    """Say who else may attach this slab of mine."""

    operation: ClassVar[str] = "grants"
    reply: ClassVar[type[Reply]] = GrantList
    id: int
    generation: int
