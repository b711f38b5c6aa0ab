"""What a tenant may have at most, what it has, and how often it may ask. No I/O; the loop's thread alone uses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from farpool.protocol.errors import PermissionDenied, QuotaExceeded
from farpool.protocol.units import format_bytes

__all__ = ["NO_QUOTA", "Account", "Quota", "Rates", "check_sessions", "check_share_of_sessions"]


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may have at most; None is no limit."""

    nbytes: int | None = None
    slabs: int | None = None
    sessions: int | None = None
    rate: float | None = None
    """Requests a second."""

    def over(self, other: Quota) -> Quota:
        """Return this quota with *other*'s limits where this one has none."""
        return Quota(
            other.nbytes if self.nbytes is None else self.nbytes,
            other.slabs if self.slabs is None else self.slabs,
            other.sessions if self.sessions is None else self.sessions,
            other.rate if self.rate is None else self.rate,
        )


NO_QUOTA: Final = Quota()


class Charged(Protocol):
    """What a tenant pays for."""

    @property
    def id(self) -> int: ...
    @property
    def charged(self) -> int: ...


S = TypeVar("S", bound=Charged)


class Account(Generic[S]):
    """All that one tenant is charged for: slabs that it has, drafts and slabs being made among them, and had."""

    __slots__ = ("held", "live", "nbytes", "slabs")

    def __init__(self) -> None:
        self.slabs: dict[int, S] = {}
        self.nbytes = 0
        self.live = 0
        """Slabs that have not ended."""
        self.held = 0
        """Bytes of those that have, and that somebody still holds."""

    def charge(self, slab: S) -> None:
        """Add a slab; one that is there already stays so."""
        if slab.id not in self.slabs:
            self.slabs[slab.id] = slab
            self.nbytes += slab.charged

    def credit(self, slab: S) -> None:
        """Take a slab out."""
        del self.slabs[slab.id]
        self.nbytes -= slab.charged

    def keep(self, slab: S) -> None:
        """Go on charging for a slab that has ended, or begin to after a restart."""
        self.charge(slab)
        self.held += slab.charged

    def settle(self, slab: S) -> None:
        """Take such a slab out."""
        self.credit(slab)
        self.held -= slab.charged

    def check(self, tenant: str, quota: Quota, charged: int) -> None:
        """Raise ``QuotaExceeded`` if one more slab of *charged* bytes is more than the tenant may have."""
        if quota.slabs is not None and self.live >= quota.slabs:
            raise QuotaExceeded(
                f'the tenant "{tenant}" has {self.live} slabs, its quota is {quota.slabs}; free some, or have the '
                f"quota raised: farpool quota set {tenant} --slabs N",
                used=self.live,
                limit=quota.slabs,
            )
        if quota.nbytes is not None and self.nbytes + charged > quota.nbytes:
            held = f" ({format_bytes(self.held)} of it freed, but still mapped by a process)" if self.held else ""
            raise QuotaExceeded(
                f'asked for {format_bytes(charged)}; the tenant "{tenant}" uses {format_bytes(self.nbytes)}{held} of '
                f"its quota of {format_bytes(quota.nbytes)}; free slabs, or have the quota raised: "
                f"farpool quota set {tenant} --bytes SIZE",
                asked=charged,
                used=self.nbytes,
                limit=quota.nbytes,
            )


def check_sessions(tenant: str, quota: Quota, sessions: int) -> None:
    """Raise ``QuotaExceeded`` if one more session is more than the tenant may have."""
    if quota.sessions is not None and sessions >= quota.sessions:
        raise QuotaExceeded(
            f'the tenant "{tenant}" has {sessions} sessions, its quota is {quota.sessions}; close some, or have the '
            f"quota raised: farpool quota set {tenant} --sessions N",
            used=sessions,
            limit=quota.sessions,
        )


def check_share_of_sessions(tenant: str, limit: int, sessions: int) -> None:
    """Raise ``PermissionDenied`` if one more session is more than half of the server's *limit*."""
    share = -(-limit // 2)
    if sessions >= share:
        raise PermissionDenied(
            f'the tenant "{tenant}" has {sessions} sessions, and no tenant has more than half of the server\'s {limit} '
            "while there are several; close some, or serve with a higher max_sessions",
            used=sessions,
            limit=share,
        )


class Rates:
    """How many requests each tenant may still send now: as many as its quota says a second, saved up for a second."""

    def __init__(self, clock: Callable[[], float], quota_of: Callable[[str], Quota]) -> None:
        self._clock = clock
        self._quota_of = quota_of
        self._allowances: dict[str, tuple[float, float]] = {}

    def take(self, tenant: str, *, refusable: bool) -> None:
        """Count a request; raise ``QuotaExceeded`` if it is *refusable* and one too many."""
        rate = self._quota_of(tenant).rate
        if rate is None:
            self._allowances.pop(tenant, None)
            return
        most = max(1.0, rate)
        now = self._clock()
        allowance, since = self._allowances.get(tenant, (most, now))
        allowance = min(most, allowance + (now - since) * rate)
        if allowance < 1.0 and refusable:
            self._allowances[tenant] = allowance, now
            raise QuotaExceeded(
                f'the tenant "{tenant}" may send {rate:g} requests a second; wait {(1.0 - allowance) / rate:.3g} s, or '
                f"have the quota raised: farpool quota set {tenant} --rate N",
                limit=rate,
                wait=(1.0 - allowance) / rate,
            )
        # What gives something back is never refused, and delays what is asked after it by a second at most.
        self._allowances[tenant] = max(allowance - 1.0, -most), now
