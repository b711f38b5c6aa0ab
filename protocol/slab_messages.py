"""The messages about slabs: what makes, finds, lists and ends them, and what a client is told of each."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from farpool.protocol.message_base import Done, Reply, Request

__all__ = ["Allocate", "Attach", "Attached", "Detach", "Free", "Listing", "Open", "SlabInfo", "SlabList"]

PAGE_SLABS: Final = 1000
"""Slabs in one page of a listing: 1,000 of at most about 600 bytes stay well below a frame's limit."""


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


class SlabList(Reply, frozen=True, kw_only=True):
    """One page of slabs in the order of their ids."""

    slabs: list[SlabInfo]
    more: bool = False


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
