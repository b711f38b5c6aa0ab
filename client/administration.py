"""What an administrator asks of a server: tenants and their tokens. For the command line; no transport is opened."""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Self, TypeVar

from farpool.client.credentials import find_credentials
from farpool.client.deadlines import deadline_after, parse_timeout
from farpool.client.dialing import find_address
from farpool.client.encryption import find_tls
from farpool.client.session import Session
from farpool.protocol.credentials import TOKEN_BYTES, verifier_of
from farpool.protocol.message_base import Done, Reply, Request
from farpool.protocol.quota_messages import TenantLimit
from farpool.protocol.tenant_messages import (
    TenantAdd,
    TenantInfo,
    TenantList,
    TenantListing,
    TenantRemove,
    TenantRotate,
)
from farpool.protocol.units import validate_tenant

__all__ = ["Administration", "new_token"]

R = TypeVar("R", bound=Reply)


def new_token() -> bytes:
    """Return 32 random bytes."""
    return secrets.token_bytes(TOKEN_BYTES)


class Administration:
    """One session of an administrator, ended by ``with``. Tokens are made here: the server gets their verifiers alone.

    Every call raises ``PermissionDenied`` unless this process is one of root or of the server's own user, on the
    server's host, and connected to its Unix socket.
    """

    def __init__(self, url: str | None, timeout: float) -> None:
        self._timeout = parse_timeout(timeout)
        address = find_address(url)
        self._session = Session(address, find_credentials(), find_tls(address, None))

    def __enter__(self) -> Self:
        try:
            self._session.open(deadline_after(None, self._timeout))
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.close()

    def ask(self, request: Request, reply_type: type[R]) -> R:
        """Ask for one administrative act."""
        return self._session.call(request, reply_type, deadline_after(None, self._timeout))

    def add_tenant(self, name: str, token: bytes | None) -> None:
        """Make a tenant, with a token or without; raise ``NameTaken``."""
        validate_tenant(name)
        self.ask(TenantAdd(tenant=name, verifier=None if token is None else verifier_of(token, name)), Done)

    def rotate_token(self, name: str, token: bytes, *, end_sessions: bool = False) -> None:
        """Make *token* the only one that opens sessions of a tenant."""
        request = TenantRotate(tenant=name, verifier=verifier_of(token, name), end_sessions=end_sessions)
        self.ask(request, Done)

    def remove_tenant(self, name: str, *, force: bool = False) -> None:
        """Remove a tenant; with *force* its sessions and slabs too."""
        self.ask(TenantRemove(tenant=name, force=force), Done)

    def limit(self, request: TenantLimit) -> None:
        """Change a tenant's quota."""
        validate_tenant(request.tenant)
        self.ask(request, Done)

    def tenants(self) -> list[TenantInfo]:
        """Return what is known of every tenant, in the order of their names."""
        found: list[TenantInfo] = []
        more = True
        while more:
            page = self.ask(TenantListing(after=found[-1].name if found else ""), TenantList)
            found += page.tenants
            more = page.more and bool(page.tenants)
        return found
