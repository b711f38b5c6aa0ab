"""What administrators ask about tenants; the service has made sure that they are some."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable
from typing import Final

from msgspec import UNSET

from farpool.protocol.errors import PermissionDenied
from farpool.protocol.message_base import Done, Reply, Request
from farpool.protocol.quota_messages import TenantLimit
from farpool.protocol.tenant_messages import (
    PAGE_TENANTS,
    TenantAdd,
    TenantInfo,
    TenantList,
    TenantListing,
    TenantRemove,
    TenantRotate,
)
from farpool.server.access import Access
from farpool.server.lifecycle import REVOKED, Lifecycle
from farpool.server.sessions import Session, SessionEvent
from farpool.server.tenants import Tenant, Tenants

__all__ = ["Administration"]

QUOTA_FIELDS: Final = {"max_bytes": "nbytes", "max_slabs": "slabs", "max_sessions": "sessions", "max_rate": "rate"}
"""What messages and the configuration call the parts of a quota, and what :class:`Quota` does."""


class Administration:
    """The tenants of one server, as its administrators change them. Not thread-safe."""

    def __init__(self, life: Lifecycle, tenants: Tenants, access: Access) -> None:
        self._life = life
        self._access = access
        self._tenants = tenants

    def handle(self, request: Request) -> Reply | Awaitable[Reply] | None:
        """Do what is asked; return None for what is not about tenants."""
        match request:
            case TenantAdd():
                self._tenants.add(request.tenant, request.verifier)
                return Done()
            case TenantListing():
                return self._list(request.after)
            case TenantRotate():
                self._tenants.rotate(request.tenant, request.verifier)
                if request.end_sessions:
                    self._end_sessions(request.tenant)
                return Done()
            case TenantLimit():
                return self._limit(request)
            case TenantRemove():
                return self._remove(request.tenant, force=request.force)
            case _:
                return None

    def _limit(self, request: TenantLimit) -> Done:
        wanted = {
            field: value for name, field in QUOTA_FIELDS.items() if (value := getattr(request, name)) is not UNSET
        }
        tenant = self._tenants.get(request.tenant)
        for name, field in QUOTA_FIELDS.items():
            if field in wanted and getattr(tenant.configured_quota, field) is not None:
                raise PermissionDenied(
                    f'the configuration sets {name} of the tenant "{tenant.name}"; change it in '
                    f"[tenants.{tenant.name}], and send the server SIGHUP"
                )
        self._tenants.limit(tenant.name, dataclasses.replace(tenant.quota, **wanted))
        return Done()

    def _list(self, after: str) -> TenantList:
        wanted = [tenant for tenant in self._tenants.sorted() if tenant.name > after]
        page = [self._info(tenant) for tenant in wanted[:PAGE_TENANTS]]
        return TenantList(tenants=page, more=len(wanted) > PAGE_TENANTS)

    def _info(self, tenant: Tenant) -> TenantInfo:
        account, quota = self._life.slabs.account(tenant.name), tenant.limits
        return TenantInfo(
            name=tenant.name,
            token=tenant.has_token,
            uids=sorted(tenant.uids),
            certificates=sorted(tenant.certificates),
            sessions=self._life.sessions.count(tenant.name),
            slabs=account.live,
            nbytes=account.nbytes,
            max_bytes=quota.nbytes,
            max_slabs=quota.slabs,
            max_sessions=quota.sessions,
            max_rate=quota.rate,
        )

    def _remove(self, name: str, *, force: bool) -> Reply | Awaitable[Reply]:
        self._tenants.check_removable(name)
        sessions = self._sessions(name)
        slabs = [slab for slab in self._life.slabs.account(name).slabs.values() if slab.state != "reclaiming"]
        if (sessions or slabs) and not force:
            raise PermissionDenied(
                f'the tenant "{name}" has {len(slabs)} slabs and {len(sessions)} sessions; to end them too: '
                f"farpool tenant remove --force {name}",
                slabs=len(slabs),
                sessions=len(sessions),
            )
        life = self._life
        # Nobody else has a turn in between. The tenant goes last: what fails before can be asked for again.
        life.making.call_off(
            name, PermissionDenied(f'the tenant "{name}" was removed while a slab of it was being made')
        )
        with life.catalog.together():
            self._access.revoke_all(name)
            self._end_sessions(name)
            removals = [
                life.end_slab(slab, REVOKED) for slab in slabs if slab.state == "live" and slab.called_off is None
            ]
        self._tenants.remove(name)
        waited_for = [removal for removal in removals if removal is not None]
        return _done_after(waited_for) if waited_for else Done()

    def _end_sessions(self, tenant: str) -> None:
        for session in self._sessions(tenant):
            self._life.sessions.end(session, SessionEvent.DISMISSED)

    def _sessions(self, tenant: str) -> list[Session]:
        return [session for session in self._life.sessions.all() if session.tenant == tenant]


async def _done_after(removals: list[Awaitable[object]]) -> Done:
    # A file that could not be removed is logged, and removed at the next start; the slab has ended all the same.
    await asyncio.gather(*removals, return_exceptions=True)
    return Done()
