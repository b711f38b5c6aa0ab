"""What a slab's owner asks about the grants of its slab."""

from __future__ import annotations

from collections.abc import Sequence

from farpool.client.attachment import Attachment
from farpool.protocol.grant_messages import Grant, GrantInfo, GrantList, Grants, Revoke
from farpool.protocol.message_base import Done
from farpool.protocol.units import parse_lease, parse_mode, validate_tenant

__all__ = ["grant", "list_grants", "revoke"]


def grant(attachment: Attachment, tenant: str, mode: str, expires: float | None, deadline: float) -> None:
    """Let another tenant attach the slab."""
    slab_id, generation = attachment.info.id, attachment.info.generation
    request = Grant(
        id=slab_id,
        generation=generation,
        tenant=validate_tenant(tenant),
        mode=parse_mode(mode),
        expires=None if expires is None else float(parse_lease(expires)),
    )
    attachment.call(request, Done, deadline)


def revoke(attachment: Attachment, tenant: str, deadline: float) -> None:
    """Take the slab from another tenant."""
    slab_id, generation = attachment.info.id, attachment.info.generation
    attachment.call(Revoke(id=slab_id, generation=generation, tenant=validate_tenant(tenant)), Done, deadline)


def list_grants(attachment: Attachment, deadline: float) -> Sequence[GrantInfo]:
    """Return who else may attach the slab."""
    slab_id, generation = attachment.info.id, attachment.info.generation
    return attachment.call(Grants(id=slab_id, generation=generation), GrantList, deadline).grants
