"""The memory regions of slabs: one for each (slab, tenant, access), so that a key opens one slab to one tenant.

A large slab is registered in a thread, over a mapping of its own: the slab may end meanwhile, and its mapping with it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.transports.contract import Mode, ServedSession, ServedSlab
from farpool.transports.rdma.binding import VerbsDomain, VerbsMemory

__all__ = ["InThread", "SlabKeys"]

InThread = Callable[[Callable[[], VerbsMemory]], Awaitable[VerbsMemory]]

Opened = tuple[str, Mode]
"""To which tenant, and for what access."""


@dataclass(slots=True)
class _Region:
    memory: VerbsMemory
    sessions: set[int] = field(default_factory=set[int])


@dataclass(slots=True, eq=False)
class _Registering:
    revoked: bool = False


class SlabKeys:
    """Regions by slab, and the sessions that have their keys. The loop's thread alone uses it."""

    def __init__(self) -> None:
        self._regions: dict[int, dict[Opened, _Region]] = {}
        self._registering: dict[int, set[_Registering]] = {}
        self.registered = 0

    def opens(self, slab: ServedSlab, tenant: str, mode: Mode) -> bool:
        """Tell whether the slab is registered for a tenant."""
        return (tenant, mode) in self._regions.get(slab.id, {})

    async def prepare(
        self, slab: ServedSlab, tenant: str, mode: Mode, domain: VerbsDomain, access: int, in_thread: InThread
    ) -> None:
        """Register a slab in a thread; nothing is left of that if the slab is revoked meanwhile."""
        slab_id = slab.id
        opened: Opened = tenant, mode
        mine = _Registering()
        self._registering.setdefault(slab_id, set()).add(mine)
        try:
            memory = await in_thread(_registration(slab, domain, access))
        finally:
            others = self._registering[slab_id]
            others.discard(mine)
            if not others:
                del self._registering[slab_id]
        if mine.revoked or opened in self._regions.get(slab_id, {}):
            memory.close()
            return
        self._keep(slab_id, opened, memory)

    def publish(
        self, slab: ServedSlab, session: ServedSession, mode: Mode, domain: VerbsDomain, access: int
    ) -> VerbsMemory:
        """Return the region that opens the slab to the session's tenant; register it if there is none yet."""
        region = self._regions.get(slab.id, {}).get((session.tenant, mode))
        if region is None:
            memory = slab.memory()
            registered = domain.register(memory, memory.address, slab.nbytes, access)
            region = self._keep(slab.id, (session.tenant, mode), registered)
        region.sessions.add(session.id)
        return region.memory

    def _keep(self, slab_id: int, opened: Opened, memory: VerbsMemory) -> _Region:
        self.registered += 1
        region = self._regions.setdefault(slab_id, {})[opened] = _Region(memory)
        return region

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Take the slab from one session; the key of a tenant ends with its last session."""
        regions = self._regions.get(slab.id, {})
        for opened, region in list(regions.items()):
            region.sessions.discard(session_id)
            if not region.sessions:
                region.memory.close()
                del regions[opened]
        if not regions:
            self._regions.pop(slab.id, None)

    def revoke(self, slab_id: int) -> None:
        """Deregister a slab: the device refuses its keys when this returns."""
        for mine in self._registering.get(slab_id, ()):
            mine.revoked = True
        for region in self._regions.pop(slab_id, {}).values():
            region.memory.close()

    def close(self) -> None:
        """Deregister every slab."""
        for slab_id in list(self._regions):
            self.revoke(slab_id)


def _registration(slab: ServedSlab, domain: VerbsDomain, access: int) -> Callable[[], VerbsMemory]:
    """Return what registers a slab in any thread."""
    nbytes, offset, descriptor = slab.nbytes, slab.offset, slab.open_descriptor("rw")

    def register() -> VerbsMemory:
        try:
            memory = MemoryMapping(descriptor, nbytes, writable=True, offset=offset)
        finally:
            os.close(descriptor)
        return domain.register(memory, memory.address, nbytes, access)

    return register
