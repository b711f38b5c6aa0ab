"""The native verbs binding: our own Cython on <infiniband/verbs.h>."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast
from weakref import WeakKeyDictionary

from farpool.native import verbs
from farpool.native.checks import buffer_extent
from farpool.native.rdma_lane import Lane
from farpool.native.rdma_region import RdmaPeer, RdmaRegion
from farpool.native.verbs import Device, MemoryRegion, ProtectionDomain, QueuePair
from farpool.transports.contract import AwaitableRegion, Region, Ticket
from farpool.transports.rdma.awaitable import AwaitablePair, AwaitableRdmaRegion
from farpool.transports.rdma.binding import Connected, OpenPair, VerbsDevice, VerbsDomain
from farpool.transports.rdma.registrations import Registrations
from farpool.transports.threads import MOST_THREADS

__all__ = [
    "ATOMIC",
    "LOCAL",
    "READ",
    "WRITE",
    "device_names",
    "domain",
    "lanes",
    "open_device",
    "pair",
    "prepare_for_fork",
]

LOCAL, READ, WRITE, ATOMIC = verbs.LOCAL, verbs.READ, verbs.WRITE, verbs.ATOMIC
prepare_for_fork = verbs.prepare_for_fork
device_names = verbs.device_names

STAGING_BYTES = 256 << 10
"""A lane's own memory: 64 parts of 4 KiB, or one buffer that is not worth registering."""

PIPELINE_BYTES = 4 << 20
"""The slots of an event loop's queue pair: 64 operations in flight."""

MOST_INLINE = 220
"""Bytes sent within the work request itself, if the device can: what one 256-byte descriptor of common NICs holds."""


def open_device(name: str, port: int) -> Device:
    """Open a device and one of its ports."""
    return Device(name, port)


def domain(device: VerbsDevice) -> ProtectionDomain:
    """Make a protection domain."""
    return ProtectionDomain(cast("Device", device))


def pair(domain: VerbsDomain, *, depth: int, max_inline: int) -> QueuePair:
    """Make a queue pair."""
    return QueuePair(cast("ProtectionDomain", domain), depth=depth, max_inline=max_inline)


def lanes(
    domain: VerbsDomain, connect: OpenPair, connected: Connected, *, max_message: int, depth: int, spin: float
) -> NativeLanes:
    """Return a session's lanes."""
    return NativeLanes(
        cast("ProtectionDomain", domain), connect, connected, max_message=max_message, depth=depth, spin=spin
    )


class NativeLanes:
    """A session's connected queue pairs. Thread-safe: each operation borrows one."""

    def __init__(
        self,
        domain: ProtectionDomain,
        connect: OpenPair,
        connected: Connected,
        *,
        max_message: int,
        depth: int,
        spin: float,
    ) -> None:
        self._domain = domain
        self._connect = connect
        self._connected = connected
        self._depth = depth
        self._spin = spin
        self._registrations = Registrations(domain, LOCAL)
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="farpool-rdma")
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, AwaitablePair] = WeakKeyDictionary()
        self._peer = RdmaPeer(
            self.open, connected, cast("Callable[[object, int, int], MemoryRegion]", self._registrations), max_message
        )

    def open(self, seconds: float) -> Lane:
        """Make a lane and connect it to the server."""
        return Lane(*self._open(STAGING_BYTES, seconds), self._spin)

    def _open(self, staging_bytes: int, seconds: float) -> tuple[QueuePair, MemoryRegion]:
        fresh = QueuePair(self._domain, depth=self._depth, max_inline=MOST_INLINE)
        try:
            memory = mmap.mmap(-1, staging_bytes)
            staging = self._domain.register(memory, *buffer_extent(memory), LOCAL)
            self._connect(fresh, seconds)
        except BaseException:
            fresh.close()
            raise
        return fresh, staging

    def ping(self, seconds: float) -> None:
        """Connect one lane, and keep it for the first operation."""
        self._peer.keep(self.open(seconds))

    def region(self, ticket: Ticket, renew: Callable[[float], Mapping[str, Any]]) -> Region:
        """Return a region over these lanes."""
        params = ticket.params
        return RdmaRegion(
            self._peer,
            params["address"],
            params["rkey"],
            ticket.generation,
            ticket.nbytes,
            ticket.writable,
            params["atomics"],
            params["incarnation"],
            ticket.label,
            ticket.timeout,
            renew,
            None,
        )

    def open_pipeline(self, seconds: float) -> tuple[QueuePair, MemoryRegion]:
        """Make the queue pair and the slots of one event loop."""
        return self._open(PIPELINE_BYTES, seconds)

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the twin of *region* over the running loop's own queue pair."""
        loop = asyncio.get_running_loop()
        pair = self._loops.get(loop)
        if pair is None:
            pair = self._loops[loop] = AwaitablePair(self.open_pipeline, self._connected, self._threads)
        return AwaitableRdmaRegion(cast("RdmaRegion", region), pair, ticket.timeout)

    def reset(self, incarnation: int) -> None:
        """Give up the idle queue pairs to other starts of the server: what they led to is gone."""
        self._peer.reset(incarnation)

    def close(self) -> None:
        """Close the queue pairs, and drop what was registered."""
        self._peer.close()
        for pair in list(self._loops.values()):
            pair.close()
        self._threads.shutdown(wait=False)
        self._registrations.clear()
