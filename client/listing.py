"""All slabs that a session may see: the server lists them page by page."""

from __future__ import annotations

from farpool.client.session import Session
from farpool.protocol.messages import Listing, SlabInfo, SlabList

__all__ = ["list_slabs"]


def list_slabs(session: Session, deadline: float) -> list[SlabInfo]:
    """Return what is known of each, in the order of their ids."""
    found: list[SlabInfo] = []
    more = True
    while more:
        page = session.call(Listing(after=found[-1].id if found else 0), SlabList, deadline)
        found += page.slabs
        more = page.more and bool(page.slabs)
    return found
