"""How many slabs the server itself has mapped: the kernel gives a process so many mappings, and no memory beyond."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import RegionInUse, TransportUnavailable
from farpool.server.arena import Arena

__all__ = ["OwnMappings", "close_mapping"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.slabs")

KERNEL_DEFAULT: Final = 65530
RESERVE: Final = 8
"""One mapping of so many is left for all else: libraries, threads' stacks and what malloc asks the kernel for."""


class OwnMappings:
    """Counts the server's mappings of slabs by whose they are, and refuses those beyond a limit. Not thread-safe.

    *most* is the limit; by default it follows from ``vm.max_map_count`` as it is now.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = _most_by_kernel() if most is None else most
        self.several_tenants: Callable[[], bool] = lambda: False
        """Whether one tenant has to leave half of all to others."""
        self._of_tenant: Counter[str] = Counter()
        self._made = 0

    def make(self, tenant: str, arena: Arena, memory_id: int, nbytes: int) -> MemoryMapping:
        """Map memory of *tenant*; raise ``TransportUnavailable`` if that is one too many, else as :class:`Arena` does.

        Whoever gives the mapping up calls :meth:`give_back`.
        """
        self._check(tenant)
        mapping = arena.map(memory_id, nbytes)
        self._of_tenant[tenant] += 1
        self._made += 1
        return mapping

    def _check(self, tenant: str) -> None:
        if self._made >= self.most:
            raise TransportUnavailable(
                f"the server has mapped {self._made} slabs, its most: vm.max_map_count allows no more; "
                "free slabs, make fewer and larger ones, or raise it and start the server again",
                limit=self.most,
            )
        share = -(-self.most // 2)
        if self._of_tenant[tenant] >= share and self.several_tenants():
            raise TransportUnavailable(
                f'the server has mapped {share} slabs of the tenant "{tenant}", and none has more than half of the '
                f"{self.most} that it maps while there are several; free slabs, make fewer and larger ones, or raise "
                "vm.max_map_count and start the server again",
                limit=share,
            )

    def give_back(self, tenant: str) -> None:
        """Count one less."""
        self._made -= 1
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]


def close_mapping(mapping: MemoryMapping | None) -> None:
    """Unmap a slab's memory. Any thread may call it."""
    if mapping is None:
        return
    try:
        mapping.close()
    except RegionInUse:  # a transport keeps a view although it has revoked the slab
        log.error("slab memory kept by a transport", nbytes=mapping.nbytes)


def _most_by_kernel() -> int:
    try:
        most = int(Path("/proc/sys/vm/max_map_count").read_text("ascii"))
    except (OSError, ValueError):
        most = KERNEL_DEFAULT
    return max(1, most - most // RESERVE)
