"""What an administrator says of a tenant's quota."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, UnsetType

from farpool.protocol.message_base import Done, Reply, Request

__all__ = ["Count", "Rate", "TenantLimit"]

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]


class TenantLimit(Request, frozen=True, kw_only=True):
    """Change what a tenant may have at most; what is not named stays, None is no limit. For administrators."""

    operation: ClassVar[str] = "tenant_limit"
    reply: ClassVar[type[Reply]] = Done
    administrative: ClassVar[bool] = True
    tenant: str
    max_bytes: Count | UnsetType | None = UNSET
    max_slabs: Count | UnsetType | None = UNSET
    max_sessions: Count | UnsetType | None = UNSET
    max_rate: Rate | UnsetType | None = UNSET
    """Requests a second."""
