"""An owner takes a slab from another tenant that has it alone: it cannot be opened to revoke the grant."""

from __future__ import annotations

from farpool.client.credentials import find_credentials
from farpool.client.deadlines import deadline_after, parse_timeout
from farpool.client.dialing import find_address
from farpool.client.encryption import find_tls
from farpool.client.listing import list_slabs
from farpool.client.session import Session
from farpool.protocol.errors import SlabNotFound
from farpool.protocol.grant_messages import Revoke
from farpool.protocol.message_base import Done
from farpool.protocol.messages import SlabInfo
from farpool.protocol.units import validate_tenant

__all__ = ["take_back"]


def take_back(slab: str | int, grantee: str, *, url: str | None, tenant: str | None, timeout: float) -> SlabInfo:
    """Revoke the grant of a slab of *tenant* without attaching it; return what is known of the slab.

    Raises:
        SlabNotFound: this tenant has no such slab.
        PoolFull: as for :meth:`farpool.Slab.revoke`.
    """
    validate_tenant(grantee)
    deadline = deadline_after(None, parse_timeout(timeout))
    address = find_address(url)
    session = Session(address, find_credentials(tenant), find_tls(address, None))
    try:
        session.open(deadline)
        info = _find(session, slab, deadline)
        session.call(Revoke(id=info.id, generation=info.generation, tenant=grantee), Done, deadline)
    finally:
        session.close()
    return info


def _find(session: Session, slab: str | int, deadline: float) -> SlabInfo:
    for info in list_slabs(session, deadline):
        if info.tenant == session.welcome.tenant and slab in (info.id, info.name):
            return info
    raise SlabNotFound(f"this tenant has no slab {slab!r:.80}; see: farpool ls")
