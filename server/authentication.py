"""Who a client is: the tenant that its peer credentials, certificate or token make it, or why it is nobody's.

Nothing here tells a stranger which tenants there are: a challenge and a refusal read the same for all of them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from farpool.protocol.credentials import NONCE_BYTES, VERIFIER_BYTES, check_proof, exchange_of, signature_of
from farpool.protocol.errors import AuthenticationFailed, PermissionDenied, ProtocolError
from farpool.protocol.messages import Challenge, Challenged, Hello
from farpool.server.peers import Peer
from farpool.server.schema import DEFAULT_TENANT
from farpool.server.tenants import Tenants

__all__ = ["Authentication", "Exchange", "Identity"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A challenge that waits for its proof."""

    tenant: str
    message: bytes
    """What both sides sign."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a client has shown to be."""

    tenant: str
    signature: bytes = b""
    """Shows a client that sent a proof that this server knows its tenant."""


class Authentication:
    """Decides whose client a peer is. The loop's thread alone uses it."""

    def __init__(self, tenants: Tenants, required: Callable[[], bool]) -> None:
        self._tenants = tenants
        self._required = required
        # A tenant that does not exist, or has no token, is checked like others: it takes as long, and always fails.
        self._decoy = secrets.token_bytes(VERIFIER_BYTES)

    def challenge(self, request: Challenge) -> tuple[Exchange, Challenged]:
        """Begin an exchange: return what is kept for its proof, and the reply."""
        if len(request.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a challenge's nonce has {NONCE_BYTES} bytes, not {len(request.nonce)}")
        nonce = secrets.token_bytes(NONCE_BYTES)
        message = exchange_of(request.tenant, request.nonce, nonce)
        return Exchange(request.tenant, message), Challenged(nonce=nonce)

    def identify(self, peer: Peer, hello: Hello, exchange: Exchange | None) -> Identity:
        """Return whose client *peer* is.

        Raises:
            AuthenticationFailed: a wrong proof, or none where one is required.
            PermissionDenied: the tenant is not open to whoever asks.
        """
        if hello.proof or exchange is not None:
            return self._check(hello, exchange)
        own = self._tenants.of_user(peer.uid) if peer.uid is not None else []
        if peer.certificate_name is not None:
            own += self._tenants.of_certificate(peer.certificate_name)
        default = own[0] if own and not peer.administrator else DEFAULT_TENANT
        name = default if hello.tenant is None else hello.tenant
        tenant = self._tenants.find(name)
        if tenant is not None and (peer.administrator or name in own):
            return Identity(name)
        if self._required():
            if peer.certificate_name is not None and not own:
                shown = json.dumps(peer.certificate_name[:80])
                raise AuthenticationFailed(
                    f"no tenant has the certificate that this client showed, of the name {shown}; have the server's "
                    f"administrator write certificates = [{shown}] below [tenants.NAME], or connect with a tenant and "
                    "its token"
                )
            raise AuthenticationFailed(
                "this server lets in nobody whom it does not know; connect with a tenant and its token, for example "
                "in FARPOOL_TENANT and FARPOOL_TOKEN (the server's administrator makes them: farpool tenant add)"
            )
        if tenant is None or not tenant.open:
            raise PermissionDenied(
                f"this server has no tenant {json.dumps(name[:80])} that is open to all; connect with the tenant's "
                f'token, or leave the tenant out for "{DEFAULT_TENANT}"'
            )
        return Identity(name)

    def _check(self, hello: Hello, exchange: Exchange | None) -> Identity:
        if exchange is None:
            raise AuthenticationFailed("a proof answers a challenge, and none was asked for on this connection")
        tenant = self._tenants.find(exchange.tenant)
        verifier = (tenant.verifier if tenant is not None else None) or self._decoy
        right = check_proof(verifier, exchange.message, hello.proof)
        if not right or tenant is None or hello.tenant not in (None, exchange.tenant):
            raise AuthenticationFailed(
                f"the server does not accept this token for tenant {json.dumps(exchange.tenant[:80])}; check both, "
                "or have a new token made: farpool tenant rotate"
            )
        return Identity(tenant.name, signature_of(verifier, exchange.message))
