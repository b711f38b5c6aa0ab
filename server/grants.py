"""Which tenants may attach slabs that are another's, in which mode and until when. The catalog remembers it.

The end of a grant is kept by the clock of the day, so that it holds over a restart and a reboot; while the server
runs, its own clock counts. Not thread-safe.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from farpool.protocol.errors import InvalidArgument
from farpool.protocol.grant_messages import MOST_GRANTS
from farpool.server.catalog import Catalog
from farpool.server.deadlines import Clock
from farpool.server.slabs import Slab, SlabTable
from farpool.transports.contract import Mode

__all__ = ["EVERY_MEMORY", "NO_MEMORY", "Grant", "Grants"]

EVERY_MEMORY: Final = -1
NO_MEMORY: Final = 0
"""What ``seen`` says besides the number of a memory."""

SET: Final = "INSERT OR REPLACE INTO grants (slab, tenant, mode, created, expires) VALUES (?, ?, ?, ?, ?)"
CLOSE: Final = "UPDATE grants SET mode = '' WHERE slab = ? AND tenant = ?"
FORGET: Final = "DELETE FROM grants WHERE slab = ? AND tenant = ?"


@dataclass(slots=True, eq=False)
class Grant:
    """One tenant's right to one slab of another's. :class:`Grants` alone changes it, but for ``seen``."""

    slab: Slab
    tenant: str
    mode: Mode | None
    """None once it was revoked, until its sessions can have nothing of the slab mapped any more."""
    expires: float = math.inf
    """On the server's clock."""
    seen: int = NO_MEMORY
    """Generation of the memory that its sessions may have mapped last; they may keep it, whatever they say."""

    @property
    def has_seen(self) -> bool:
        """Whether the tenant may have mapped the memory that the slab has now."""
        return self.seen in (EVERY_MEMORY, self.slab.generation)


class Grants:
    """Every grant of one server; ``expired`` is called with each whose time is over."""

    def __init__(
        self,
        catalog: Catalog,
        slabs: SlabTable,
        clock: Clock,
        watch: Callable[[Callable[[], float], Callable[[], None]], None],
    ) -> None:
        self.expired: Callable[[Grant], None] = self.close
        self._catalog = catalog
        self._slabs = slabs
        self._clock = clock
        self._watch = watch
        self._by_slab: dict[int, dict[str, Grant]] = {}
        self._by_tenant: dict[str, dict[int, Grant]] = {}

    def restore(self) -> None:
        """Take over what the catalog has; what an earlier server's clients have mapped is not known any more."""
        slabs = {slab.id: slab for slab in self._slabs.all()}
        for slab_id, tenant, mode, expires in self._catalog.rows("SELECT slab, tenant, mode, expires FROM grants"):
            if slab_id not in slabs:
                self._catalog.write((FORGET, (slab_id, tenant)))
                continue
            left = math.inf if expires is None else expires - time.time()
            known: Mode | None = mode if mode in ("r", "rw") else None
            self._add(Grant(slabs[slab_id], tenant, known, self._clock() + left, EVERY_MEMORY))

    # Asking -------------------------------------------------------------------------------------------

    def find(self, tenant: str, slab_id: int) -> Grant | None:
        """Return the grant of a slab to a tenant; None if it has none that is open."""
        grant = self._by_tenant.get(tenant, {}).get(slab_id)
        return None if grant is None or grant.mode is None or grant.expires <= self._clock() else grant

    def of_slab(self, slab: Slab) -> list[Grant]:
        """Return the grants of a slab in the order of their tenants, the closed ones too."""
        return [grant for _, grant in sorted(self._by_slab.get(slab.id, {}).items())]

    def of_tenant(self, tenant: str) -> list[Grant]:
        """Return the grants that a tenant was given, the closed ones too."""
        return list(self._by_tenant.get(tenant, {}).values())

    def closed(self) -> list[Grant]:
        """Return the grants that were revoked, and whose sessions may still map what the slab has now."""
        return [grant for grants in self._by_slab.values() for grant in grants.values() if grant.mode is None]

    def seconds_left(self, grant: Grant) -> float | None:
        """Return how long a grant holds; None for one that ends with its slab."""
        return None if grant.expires == math.inf else max(0.0, grant.expires - self._clock())

    # Changing -----------------------------------------------------------------------------------------

    def set(self, slab: Slab, tenant: str, mode: Mode, seconds: float | None) -> None:
        """Give a tenant a right to a slab, in the place of the one that it has."""
        before = self._by_slab.get(slab.id, {}).get(tenant)
        if before is None and len(self._by_slab.get(slab.id, {})) >= MOST_GRANTS:
            raise InvalidArgument(f"{slab.label} has {MOST_GRANTS} grants, which is the limit; revoke one first")
        now = time.time()
        self._catalog.write((SET, (slab.id, tenant, mode, now, None if seconds is None else now + seconds)))
        expires = math.inf if seconds is None else self._clock() + seconds
        self._add(Grant(slab, tenant, mode, expires, NO_MEMORY if before is None else before.seen))

    def close(self, grant: Grant) -> None:
        """Take a tenant's right away, and remember that its sessions may still have the slab mapped."""
        if grant.mode is not None:
            self._catalog.write((CLOSE, (grant.slab.id, grant.tenant)))
            grant.mode = None

    def forget(self, grant: Grant) -> None:
        """Drop a grant; nothing happens if another has taken its place."""
        if self._is_current(grant):
            self._catalog.write((FORGET, (grant.slab.id, grant.tenant)))
            self._drop(grant)

    def end_slab(self, slab: Slab) -> None:
        """Drop every grant of a slab that has ended; its rows go when the next change is made."""
        for grant in self.of_slab(slab):
            self._drop(grant)
            self._catalog.forget((FORGET, (slab.id, grant.tenant)))

    def _is_current(self, grant: Grant) -> bool:
        return self._by_slab.get(grant.slab.id, {}).get(grant.tenant) is grant

    def _add(self, grant: Grant) -> None:
        self._by_slab.setdefault(grant.slab.id, {})[grant.tenant] = grant
        self._by_tenant.setdefault(grant.tenant, {})[grant.slab.id] = grant
        self._watch(lambda: self._deadline(grant), lambda: self.expired(grant))

    def _deadline(self, grant: Grant) -> float:
        return grant.expires if self._is_current(grant) and grant.mode is not None else math.inf

    def _drop(self, grant: Grant) -> None:
        of_slab, of_tenant = self._by_slab[grant.slab.id], self._by_tenant[grant.tenant]
        del of_slab[grant.tenant], of_tenant[grant.slab.id]
        if not of_slab:
            del self._by_slab[grant.slab.id]
        if not of_tenant:
            del self._by_tenant[grant.tenant]
