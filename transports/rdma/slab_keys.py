"""The memory regions of slabs: one for each (memory, tenant, access), so that a key opens one slab to one tenant.

A large slab is registered in a thread, over a mapping of its own: the slab may end meanwhile, and its mapping with it.
Who asks for what is being registered waits for that.
"""

from __future__ import annotations

import asyncio
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
    done: asyncio.Event = field(default_factory=asyncio.Event)
    revoked: bool = False
    error: BaseException | None = None


class SlabKeys:
    """Regions by the generation of a slab's memory, and who has their keys. The loop's thread alone uses it."""

    def __init__(self) -> None:
        self._regions: dict[int, dict[Opened, _Region]] = {}
        self._registering: dict[int, dict[Opened, _Registering]] = {}
        self.registered = 0

    def prepare(
        self, slab: ServedSlab, tenant: str, mode: Mode, domain: VerbsDomain, access: int, in_thread: InThread
    ) -> Awaitable[None] | None:
        """Return what to await until a slab is registered for a tenant, or None if it is.

        Nothing is left of that if the slab is revoked meanwhile.
        """
        memory = slab.generation
        opened: Opened = tenant, mode
        if opened in self._regions.get(memory, {}):
            return None
        under_way = self._registering.get(memory, {}).get(opened)
        if under_way is not None:
            return _finished(under_way)
        mine = self._registering.setdefault(memory, {})[opened] = _Registering()
        try:
            return self._register(memory, opened, mine, in_thread(_registration(slab, domain, access)))
        except BaseException:
            self._end(memory, opened)
            raise

    async def _register(
        self, memory: int, opened: Opened, mine: _Registering, registering: Awaitable[VerbsMemory]
    ) -> None:
        try:
            registered = await registering
        except BaseException as error:
            mine.error = error
            raise
        finally:
            self._end(memory, opened)
            mine.done.set()
        if mine.revoked:
            registered.close()
        else:
            self._keep(memory, opened, registered)

    def _end(self, memory: int, opened: Opened) -> None:
        under_way = self._registering[memory]
        del under_way[opened]
        if not under_way:
            del self._registering[memory]

    def publish(
        self, slab: ServedSlab, session: ServedSession, mode: Mode, domain: VerbsDomain, access: int
    ) -> VerbsMemory:
        """Return the region that opens the slab to the session's tenant; register it if there is none yet."""
        region = self._regions.get(slab.generation, {}).get((session.tenant, mode))
        if region is None:
            memory = slab.memory()
            registered = domain.register(memory, memory.address, slab.nbytes, access)
            region = self._keep(slab.generation, (session.tenant, mode), registered)
        region.sessions.add(session.id)
        return region.memory

    def _keep(self, memory: int, opened: Opened, registered: VerbsMemory) -> _Region:
        self.registered += 1
        region = self._regions.setdefault(memory, {})[opened] = _Region(registered)
        return region

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Take the slab from one session; the key of a tenant ends with its last session."""
        regions = self._regions.get(slab.generation, {})
        for opened, region in list(regions.items()):
            region.sessions.discard(session_id)
            if not region.sessions:
                region.memory.close()
                del regions[opened]
        if not regions:
            self._regions.pop(slab.generation, None)

    def revoke(self, slab: ServedSlab) -> None:
        """Deregister a slab: the device refuses its keys when this returns."""
        for mine in self._registering.get(slab.generation, {}).values():
            mine.revoked = True
        for region in self._regions.pop(slab.generation, {}).values():
            region.memory.close()

    def close(self) -> None:
        """Deregister every slab."""
        for regions in self._regions.values():
            for region in regions.values():
                region.memory.close()
        self._regions.clear()


async def _finished(registering: _Registering) -> None:
    """Wait for a registration that another session has asked for."""
    await registering.done.wait()
    if registering.error is not None:
        raise registering.error


def _registration(slab: ServedSlab, domain: VerbsDomain, access: int) -> Callable[[], VerbsMemory]:
    """Return what registers a slab in any thread."""
    nbytes, descriptor = slab.nbytes, slab.open_descriptor("rw")
    try:
        memory = MemoryMapping(descriptor, nbytes, writable=True, offset=slab.offset)
    finally:
        os.close(descriptor)

    def register() -> VerbsMemory:
        return domain.register(memory, memory.address, nbytes, access)

    return register
