"""The server half of rdma: protection domains, memory regions and queue pairs; no part in any operation.

One protection domain a tenant, one memory region for each (slab, tenant, access), so that a key opens one slab to one
tenant. Revoking a slab deregisters its regions: the device refuses the keys from then on. Ending a session destroys
its queue pairs. Queue pairs are capped, and looked through on a timer, so that failed ones do not add up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.protocol.units import format_bytes
from farpool.transports.contract import Mode, ServedSession, ServedSlab, ServerContext
from farpool.transports.rdma import binding as bindings
from farpool.transports.rdma.binding import Binding, VerbsDomain, VerbsPair
from farpool.transports.rdma.handshake import connect_pair, decode_end, describe_end
from farpool.transports.rdma.locked_memory import ENOUGH_BYTES, how_to_raise, locked_limit
from farpool.transports.rdma.ports import Port, open_port
from farpool.transports.rdma.slab_keys import SlabKeys

__all__ = ["RdmaServer"]

PAIRS_A_SESSION: Final = 8
"""A client that connects more has lost the older ones: the oldest is destroyed."""

PAIRS_IN_ALL: Final = 16384
RECLAIM_SECONDS: Final = 5.0

_SETTINGS = {"device", "port", "gid_index", "mtu", "verbs", "max_queue_pairs"}


class RdmaServer:
    """Registers slabs and connects queue pairs. All calls come from the event loop's thread."""

    def __init__(self) -> None:
        self._binding: Binding | None = None
        self._port: Port | None = None
        self._context: ServerContext | None = None
        self._domains: dict[str, VerbsDomain] = {}
        self._pairs: dict[int, list[VerbsPair]] = {}
        self._keys = SlabKeys()
        self._timer: asyncio.TimerHandle | None = None
        self._most_pairs = PAIRS_IN_ALL
        self._incarnation = secrets.randbits(63)
        """Keys of an earlier start may be those of other slabs now: a client uses a key on pairs of its own start."""
        self._counts = {"connected": 0, "reclaimed": 0}

    async def start(self, context: ServerContext) -> None:
        """Open the device; raise ``TransportUnavailable`` with what would mend it."""
        settings = context.settings
        unknown = set(settings) - _SETTINGS
        if unknown:
            raise InvalidArgument(
                f"rdma has no setting {', '.join(sorted(unknown))}; it knows {', '.join(sorted(_SETTINGS))}"
            )
        self._binding = bindings.load(str(settings.get("verbs", bindings.DEFAULT_BINDING)))
        self._port = open_port(self._binding, settings)
        limits = self._port.device.limits()
        self._most_pairs = min(int(settings.get("max_queue_pairs", PAIRS_IN_ALL)), limits["max_qp"])
        self._context = context
        self._timer = context.loop.call_later(RECLAIM_SECONDS, self._reclaim)
        context.report("rdma device", {"device": self._port.describe()})
        locked = locked_limit()
        if locked is not None and locked < ENOUGH_BYTES:
            reason = f"only {format_bytes(locked)} of slabs can be registered: the limit of locked memory"
            mend = f"{how_to_raise()}, or LimitMEMLOCK=infinity in the systemd unit"
            context.report("locked memory is short", {"reason": f"{reason}; run: {mend}"})

    async def stop(self) -> None:
        """Close the device, and what was made from it first."""
        if self._timer is not None:
            self._timer.cancel()
        for pairs in self._pairs.values():
            for pair in pairs:
                pair.close()
        self._pairs.clear()
        self._keys.close()
        for domain in self._domains.values():
            domain.close()
        self._domains.clear()
        if self._port is not None:
            self._port.device.close()
            self._port = None

    def _opened(self) -> tuple[Binding, Port]:
        if self._binding is None or self._port is None:
            raise TransportUnavailable("rdma is not started on this server")
        return self._binding, self._port

    def offer(self) -> Mapping[str, Any]:
        """Return how the server is reached, for people; addresses are exchanged when a client connects."""
        _, port = self._opened()
        return {"port": port.describe(), "atomics": port.atomics}

    def _domain(self, tenant: str) -> VerbsDomain:
        binding, port = self._opened()
        domain = self._domains.get(tenant)
        if domain is None:
            domain = self._domains[tenant] = binding.domain(port.device)
        return domain

    def negotiate(self, session: ServedSession, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a queue pair for *session*, connect it to the client's, and return our end."""
        binding, port = self._opened()
        peer = decode_end(params)
        mine = self._pairs.setdefault(session.id, [])
        if len(mine) >= PAIRS_A_SESSION:
            self._close_failed(mine)
        while len(mine) >= PAIRS_A_SESSION:
            self._close_pair(mine.pop(0))
        if sum(map(len, self._pairs.values())) >= self._most_pairs:
            self._reclaim_failed()
        if sum(map(len, self._pairs.values())) >= self._most_pairs:
            raise TransportUnavailable(
                f"all {self._most_pairs} queue pairs of this server are in use; "
                "raise rdma's max_queue_pairs, or close sessions"
            )
        pair = binding.pair(self._domain(session.tenant), depth=1, max_inline=0)
        pair.incarnation = self._incarnation
        try:
            atomic = binding.ATOMIC if port.atomics else 0
            connect_pair(pair, port, peer, binding.READ | binding.WRITE | atomic)
        except BaseException:
            pair.close()
            raise
        mine.append(pair)
        self._counts["connected"] += 1
        return describe_end(pair, port)

    def _close_pair(self, pair: VerbsPair) -> None:
        pair.close()
        self._counts["reclaimed"] += 1

    def _reclaim_failed(self) -> None:
        """Destroy the queue pairs that their device has given up."""
        for pairs in self._pairs.values():
            self._close_failed(pairs)

    def _close_failed(self, pairs: list[VerbsPair]) -> None:
        for pair in [pair for pair in pairs if pair.failed()]:
            pairs.remove(pair)
            self._close_pair(pair)

    def _reclaim(self) -> None:
        assert self._context is not None
        self._reclaim_failed()
        self._timer = self._context.loop.call_later(RECLAIM_SECONDS, self._reclaim)

    def _access(self, slab: ServedSlab, mode: Mode) -> int:
        binding, _ = self._opened()
        if mode == "r":
            return binding.READ
        return binding.READ | binding.LOCAL | binding.WRITE | (binding.ATOMIC if self._has_atomics(slab) else 0)

    def _has_atomics(self, slab: ServedSlab) -> bool:
        return self._opened()[1].atomics and slab.atomics == "rdma"

    def prepare(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Awaitable[None] | None:
        """Register a large slab in a thread, if it is not: the kernel takes its time to pin the pages."""
        assert self._context is not None
        domain, access = self._domain(session.tenant), self._access(slab, mode)
        return self._keys.prepare(slab, session.tenant, mode, domain, access, self._context.in_thread)

    def publish(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Mapping[str, Any]:
        """Register the slab for the session's tenant, if it is not, and return its key."""
        memory = self._keys.publish(slab, session, mode, self._domain(session.tenant), self._access(slab, mode))
        keys = {"address": memory.address, "rkey": memory.rkey}
        return {**keys, "atomics": self._has_atomics(slab), "incarnation": self._incarnation}

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Take the slab from one session; the key of a tenant ends with its last session."""
        self._keys.withdraw(slab, session_id)

    def revoke(self, slab: ServedSlab) -> None:
        """Deregister the slab: the device refuses its keys when this returns."""
        self._keys.revoke(slab)

    def end_session(self, session_id: int) -> None:
        """Destroy the session's queue pairs."""
        for pair in self._pairs.pop(session_id, []):
            self._close_pair(pair)

    def holders_may_map(self) -> bool:
        """Return False: clients reach the memory through the device alone."""
        return False

    def counters(self) -> Mapping[str, int]:
        """Return what was connected, registered and reclaimed, and the queue pairs that exist now."""
        return {**self._counts, "registered": self._keys.registered, "queue_pairs": sum(map(len, self._pairs.values()))}
