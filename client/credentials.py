"""Whose client this process is: the tenant and token of a call, a file or the environment.

A token stays in here: it is in no message, error, log or ``repr``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from farpool.protocol.credentials import NONCE_BYTES, check_signature, exchange_of, parse_token, proof_of
from farpool.protocol.errors import AuthenticationFailed, InvalidArgument
from farpool.protocol.tenant_messages import DEFAULT_TENANT, Challenge, Challenged
from farpool.protocol.units import shown

__all__ = ["ANONYMOUS", "Credentials", "Proving", "find_credentials"]

TOKEN_FILE_BYTES: Final = 4096
"""What is read of a file that should hold one token."""


class Credentials:
    """A tenant, or None for the server's choice, and its token, or None. Immutable; its repr has no secret."""

    __slots__ = ("_token", "tenant")

    def __init__(self, tenant: str | None, token: bytes | None) -> None:
        self.tenant = tenant
        self._token = token

    def __repr__(self) -> str:
        return f"<Credentials of tenant {self.tenant!r}, {'no' if self._token is None else 'with a'} token>"

    def prove(self) -> Proving | None:
        """Begin an exchange that shows the token; None if there is none to show."""
        return (
            None
            if self._token is None
            else Proving(DEFAULT_TENANT if self.tenant is None else self.tenant, self._token)
        )


class Proving:
    """One exchange: the challenge, the proof that answers it, and the check of the server's own."""

    __slots__ = ("_exchange", "_nonce", "_token", "tenant")

    def __init__(self, tenant: str, token: bytes) -> None:
        self.tenant = tenant
        self._token = token
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._exchange = b""

    @property
    def challenge(self) -> Challenge:
        """What the server is asked first."""
        return Challenge(tenant=self.tenant, nonce=self._nonce)

    def answer(self, challenged: Challenged) -> bytes:
        """Return the proof for the server's reply."""
        self._exchange = exchange_of(self.tenant, self._nonce, challenged.nonce)
        return proof_of(self._token, self.tenant, self._exchange)

    def check(self, signature: bytes) -> None:
        """Raise ``AuthenticationFailed`` unless the server has shown that it knows the tenant."""
        if not check_signature(self._token, self.tenant, self._exchange, signature):
            raise AuthenticationFailed(
                f'this server does not know the token of tenant "{self.tenant}": it is not the one that made it, and '
                "was told nothing; check the address"
            )


ANONYMOUS: Final = Credentials(None, None)


def find_credentials(
    tenant: str | None = None, token: str | None = None, environment: Mapping[str, str] | None = None
) -> Credentials:
    """Return what was passed, completed by ``FARPOOL_TENANT`` and ``FARPOOL_TOKEN`` or ``FARPOOL_TOKEN_FILE``.

    Raises:
        InvalidArgument: no tenant's name, no token, or a file that cannot be read.
    """
    environment = os.environ if environment is None else environment
    if tenant is None:
        tenant = environment.get("FARPOOL_TENANT") or None
    elif not isinstance(tenant, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"a tenant is a name, or None for the server's default, not {shown(tenant)}")
    if token is not None:
        return Credentials(tenant, parse_token(token))
    if text := environment.get("FARPOOL_TOKEN"):
        return Credentials(tenant, parse_token(text.strip()))
    if path := environment.get("FARPOOL_TOKEN_FILE"):
        return Credentials(tenant, parse_token(_read_token(path)))
    return Credentials(tenant, None)


def _read_token(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(TOKEN_FILE_BYTES).decode("ascii", "replace").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidArgument(f"the token file {path!r:.400} of FARPOOL_TOKEN_FILE cannot be read: {reason}") from None
