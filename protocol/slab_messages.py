"""What a client is told of a slab: the facts, and what it needs to reach it."""

from __future__ import annotations

from typing import Any

import msgspec

from farpool.protocol.message_base import Reply

__all__ = ["Attached", "SlabInfo"]


class SlabInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What anyone who may see a slab is told of it."""

    id: int
    generation: int
    """The slab's life: handles are bound to it, and commits leave it as it is."""
    nbytes: int
    tenant: str
    name: str | None = None
    lease: str | float = "session"
    expires_in: float | None = None
    """Seconds until a leased slab ends unless its owner renews it; None for other leases."""
    state: str = "live"
    """``live``, ``orphaned`` (its owner's session is in its grace) or ``reclaiming`` (freed, still mapped)."""
    attached: int = 0
    """Sessions that have it attached now."""
    atomics: str = "cpu"
    """Whose atomics its words belong to: ``cpu`` (cxl, tcp) or ``rdma``."""
    commits: int = 0
    """How often it was committed; from the first commit on it is written through drafts alone."""
    memory: int = 0
    """Generation of the memory that it has now; 0 stands for ``generation``."""

    @property
    def memory_generation(self) -> int:
        """Generation of the memory that it has now, which every commit changes."""
        return self.memory or self.generation


class Attached(Reply, frozen=True, kw_only=True):
    """A slab, and what the transport's client half needs to reach it."""

    slab: SlabInfo
    epoch: int
    transport: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    block: int = 0
    """Bytes that each of ``checksums`` covers; 0 where there are none."""
    checksums: bytes = b""
    """The crc32c of every block, as they were committed; see :mod:`farpool.protocol.checksums`."""
