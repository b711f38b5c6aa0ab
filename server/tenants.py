"""The tenants of a pool, from catalog and configuration: how each is known, and what it may have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from farpool.protocol.credentials import VERIFIER_BYTES
from farpool.protocol.errors import InvalidArgument, NameTaken, PermissionDenied
from farpool.protocol.units import validate_tenant
from farpool.server.catalog import DEFAULT_TENANT, Catalog
from farpool.server.quotas import NO_QUOTA, Quota

__all__ = ["NO_QUOTA", "Quota", "Tenant", "TenantSettings", "Tenants"]

END_SLABS: Final = "UPDATE slabs SET reclaiming = 1, name = NULL, owner = NULL WHERE tenant = ?"


class TenantSettings(Protocol):
    """What the configuration says of one tenant."""

    @property
    def uids(self) -> Sequence[int]: ...  # noqa: D102
    @property
    def certificates(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def max_bytes(self) -> int | None: ...  # noqa: D102
    @property
    def max_slabs(self) -> int | None: ...  # noqa: D102
    @property
    def max_sessions(self) -> int | None: ...  # noqa: D102
    @property
    def max_rate(self) -> float | None: ...  # noqa: D102


@dataclass(slots=True)
class Tenant:
    """One tenant. :class:`Tenants` alone changes it."""

    name: str
    verifier: bytes | None = None
    """What its token is checked with; None if it has none, empty if it has none and stays closed all the same."""
    quota: Quota = NO_QUOTA
    """As administrators have said."""
    configured_quota: Quota = NO_QUOTA
    """As the configuration says, which comes first."""
    uids: frozenset[int] = frozenset()
    """Users of this host that are its clients by the kernel's word."""
    certificates: frozenset[str] = frozenset()
    """Names in client certificates that are its clients by their issuer's word."""
    configured: bool = False
    """Whether the configuration names it."""

    @property
    def has_token(self) -> bool:
        """Whether there is a token that its clients can prove."""
        return bool(self.verifier)

    @property
    def limits(self) -> Quota:
        """What holds for it."""
        return self.configured_quota.over(self.quota)

    @property
    def open(self) -> bool:
        """Whether nothing says who its clients are: where no authentication is required, anybody may be one."""
        return self.verifier is None and not self.uids and not self.certificates


class Tenants:
    """Every tenant of one server. The loop's thread alone uses it."""

    def __init__(self, catalog: Catalog, configured: Mapping[str, TenantSettings]) -> None:
        self._catalog = catalog
        columns = "name, verifier, max_bytes, max_slabs, max_sessions, max_rate"
        rows = catalog.rows(f"SELECT {columns} FROM tenants")  # noqa: S608  a constant
        self._tenants = {name: Tenant(name, verifier, Quota(*limits)) for name, verifier, *limits in rows}
        self._configured: list[Tenant] = []
        self.configure(configured)

    def configure(self, configured: Mapping[str, TenantSettings]) -> None:
        """Take over what the configuration says now; a tenant that it names for the first time is made.

        That one is closed to all whom the configuration does not name, and stays so when it names it no more.
        """
        for name in configured:
            if name not in self._tenants:
                self._insert(name, b"")
        self._configured = [self._tenants[name] for name in configured]
        for tenant in self._tenants.values():
            wanted = configured.get(tenant.name)
            tenant.configured = wanted is not None
            tenant.uids = frozenset(wanted.uids if wanted is not None else ())
            tenant.certificates = frozenset(wanted.certificates if wanted is not None else ())
            tenant.configured_quota = NO_QUOTA if wanted is None else _quota_of(wanted)

    def __len__(self) -> int:
        return len(self._tenants)

    def sorted(self) -> list[Tenant]:
        """Return all tenants in the order of their names."""
        return sorted(self._tenants.values(), key=lambda tenant: tenant.name)

    def find(self, name: str) -> Tenant | None:
        """Return the tenant of that name, None if there is none."""
        return self._tenants.get(name)

    def get(self, name: str) -> Tenant:
        """Return the tenant of that name for an administrator; raise ``InvalidArgument``."""
        tenant = self._tenants.get(name)
        if tenant is None:
            raise InvalidArgument(f"there is no tenant {name!r:.80}; see: farpool tenant list")
        return tenant

    def limits(self, name: str) -> Quota:
        """Return what a tenant may have at most."""
        tenant = self._tenants.get(name)
        return NO_QUOTA if tenant is None else tenant.limits

    def of_user(self, uid: int) -> list[str]:
        """Return the names of the tenants that a user of this host belongs to, in the order of the configuration."""
        return [tenant.name for tenant in self._configured if uid in tenant.uids]

    def of_certificate(self, certificate: str) -> list[str]:
        """Return the names of the tenants that the holder of a certificate of that name belongs to, in that order."""
        return [tenant.name for tenant in self._configured if certificate in tenant.certificates]

    # What administrators change -----------------------------------------------------------------------

    def add(self, name: str, verifier: bytes | None) -> Tenant:
        """Make a tenant; raise ``NameTaken`` if there is one of that name."""
        validate_tenant(name)
        if name in self._tenants:
            raise NameTaken(f'there is a tenant "{name}" already; for another token: farpool tenant rotate {name}')
        return self._insert(name, None if verifier is None else _checked(verifier))

    def rotate(self, name: str, verifier: bytes) -> None:
        """Change what a tenant's token is checked with."""
        tenant = self.get(name)
        self._catalog.write(("UPDATE tenants SET verifier = ? WHERE name = ?", (_checked(verifier), name)))
        tenant.verifier = verifier

    def limit(self, name: str, quota: Quota) -> None:
        """Change a tenant's quota."""
        tenant = self.get(name)
        change = "UPDATE tenants SET max_bytes = ?, max_slabs = ?, max_sessions = ?, max_rate = ? WHERE name = ?"
        self._catalog.write((change, (quota.nbytes, quota.slabs, quota.sessions, quota.rate, name)))
        tenant.quota = quota

    def check_removable(self, name: str) -> None:
        """Raise ``PermissionDenied`` for a tenant that would come back, or that the server cannot do without."""
        if name == DEFAULT_TENANT:
            raise PermissionDenied(
                f'the tenant "{name}" stays; to close it to those without a token: farpool tenant rotate {name}'
            )
        if self.get(name).configured:
            raise PermissionDenied(
                f'the configuration names the tenant "{name}"; take [tenants.{name}] out of it first'
            )

    def remove(self, name: str) -> None:
        """Forget a tenant, whose slabs have all ended: those whose memory is still there must not be the next one's."""
        self.check_removable(name)
        self._catalog.write((END_SLABS, (name,)), ("DELETE FROM tenants WHERE name = ?", (name,)))
        del self._tenants[name]

    def _insert(self, name: str, verifier: bytes | None) -> Tenant:
        insertion = "INSERT INTO tenants (name, created, verifier) VALUES (?, ?, ?)"
        self._catalog.write((insertion, (name, time.time(), verifier)))
        tenant = self._tenants[name] = Tenant(name, verifier)
        return tenant


def _quota_of(wanted: TenantSettings) -> Quota:
    return Quota(wanted.max_bytes, wanted.max_slabs, wanted.max_sessions, wanted.max_rate)


def _checked(verifier: bytes) -> bytes:
    if len(verifier) != VERIFIER_BYTES:
        raise InvalidArgument(f"a verifier has {VERIFIER_BYTES} bytes, not {len(verifier)}; use: farpool tenant")
    return verifier
