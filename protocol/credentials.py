"""How a client proves that it has a tenant's token, and a server that it knows the tenant. Pure functions.

The arithmetic is that of SCRAM-SHA-256 (RFC 5802): the server keeps a verifier, from which no token can be made, and
neither the token nor the verifier is ever sent. A password would be stretched first; a token is 256 random bits, for
which one HMAC does. Both sides sign the same message, which has the nonce of either, so that no exchange can be
replayed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from typing import Final

from farpool.protocol.errors import InvalidArgument

__all__ = [
    "NONCE_BYTES",
    "TOKEN_BYTES",
    "VERIFIER_BYTES",
    "check_proof",
    "check_signature",
    "exchange_of",
    "format_token",
    "parse_token",
    "proof_of",
    "signature_of",
    "verifier_of",
]

TOKEN_BYTES: Final = 32
NONCE_BYTES: Final = 32
KEY_BYTES: Final = 32
VERIFIER_BYTES: Final = 2 * KEY_BYTES
"""StoredKey and ServerKey, one after the other."""

PREFIX: Final = "farpool_"
"""What a token begins with, so that people and scanners of leaked secrets know it for one."""

CONTEXT: Final = b"farpool token 1"
"""Ours alone: no other program's signature can pass for a proof."""


def format_token(secret: bytes) -> str:
    """Return the text of a token of 32 random bytes."""
    return PREFIX + base64.urlsafe_b64encode(secret).decode().rstrip("=")


def parse_token(text: object) -> bytes:
    """Return the 32 bytes of a token's text.

    Raises:
        InvalidArgument: it is no token; the message never repeats it.
    """
    if isinstance(text, str) and text.isascii() and text.startswith(PREFIX):
        try:
            secret = base64.b64decode(text.removeprefix(PREFIX) + "=", altchars=b"-_", validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) == TOKEN_BYTES and hmac.compare_digest(format_token(secret), text):
            return secret
    raise InvalidArgument(
        f"the token is none: it begins with {PREFIX} and has 51 characters, as `farpool tenant add` printed it"
    )


def exchange_of(tenant: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the message that both sides sign; each part with its length, so that none can pass for another."""
    parts = (CONTEXT, tenant.encode("utf-8", "surrogatepass"), client_nonce, server_nonce)
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def verifier_of(token: bytes, tenant: str) -> bytes:
    """Return what a server keeps of *token*; another for each tenant."""
    return stored_key(client_key(key_of(token, tenant))) + server_key(key_of(token, tenant))


def proof_of(token: bytes, tenant: str, exchange: bytes) -> bytes:
    """Return what shows the server that the client has *token*."""
    return client_proof(key_of(token, tenant), exchange)


def check_proof(verifier: bytes, exchange: bytes, proof: bytes) -> bool:
    """Tell whether *proof* was made with the token of *verifier*, in constant time."""
    stored = verifier[:KEY_BYTES]
    key = _xor(proof[:KEY_BYTES].ljust(KEY_BYTES, b"\0"), _sign(stored, exchange))
    return hmac.compare_digest(stored_key(key), stored) & (len(proof) == KEY_BYTES)


def signature_of(verifier: bytes, exchange: bytes) -> bytes:
    """Return what shows the client that the server has *verifier*."""
    return _sign(verifier[KEY_BYTES:VERIFIER_BYTES], exchange)


def check_signature(token: bytes, tenant: str, exchange: bytes, signature: bytes) -> bool:
    """Tell whether *signature* was made with the verifier of *token*, in constant time."""
    return hmac.compare_digest(_sign(server_key(key_of(token, tenant)), exchange), signature)


# RFC 5802, section 3; *key* stands in for its SaltedPassword ----------------------------------------------------


def key_of(token: bytes, tenant: str) -> bytes:
    """Return the key of one tenant's exchanges."""
    return _sign(token, CONTEXT + b"\0" + tenant.encode("utf-8", "surrogatepass"))


def client_key(key: bytes) -> bytes:
    """Return ClientKey."""
    return _sign(key, b"Client Key")


def stored_key(client: bytes) -> bytes:
    """Return StoredKey, from which ClientKey cannot be made."""
    return hashlib.sha256(client).digest()


def server_key(key: bytes) -> bytes:
    """Return ServerKey."""
    return _sign(key, b"Server Key")


def client_proof(key: bytes, exchange: bytes) -> bytes:
    """Return ClientProof over *exchange*, the RFC's AuthMessage."""
    client = client_key(key)
    return _xor(client, _sign(stored_key(client), exchange))


def _sign(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
