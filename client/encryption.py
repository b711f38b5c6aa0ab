"""What a client asks of a server's certificate, and shows it: ``farpool.Tls``, or ``FARPOOL_TLS_*``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from farpool.protocol.addresses import Address
from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.protocol.units import shown

if TYPE_CHECKING:
    from farpool.native.tls import TlsClient, TlsConnection

__all__ = ["Tls", "encrypt", "find_tls", "refuse_clear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How a connection to ``farpools://`` is made. Files are PEM, and read when a pool is connected.

    What is None is taken from the environment: ``FARPOOL_TLS_CA``, ``FARPOOL_TLS_CERTIFICATE``, ``FARPOOL_TLS_KEY``,
    ``FARPOOL_TLS_SERVER_NAME``.
    """

    ca: str | os.PathLike[str] | None = None
    """File or folder of the authorities that may have signed the server's certificate; else the system's."""
    certificate: str | os.PathLike[str] | None = None
    """File of this client's certificate, and of those between it and its authority, for servers that ask for one."""
    key: str | os.PathLike[str] | None = None
    """File of the certificate's key, without a password, if it is not in the same file."""
    server_name: str | None = None
    """What the server's certificate must be for, if not the host of the address."""


def find_tls(address: Address, tls: Tls | None, environment: Mapping[str, str] | None = None) -> TlsClient | None:
    """Return what connections to *address* are encrypted with; None if they are in clear.

    Raises:
        InvalidArgument: a file that cannot be used, or *tls* with an address without TLS.
        TransportUnavailable: Farpool was built without TLS.
    """
    if tls is not None and not isinstance(tls, Tls):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"tls is a farpool.Tls, not {shown(tls)}")
    if not address.tls:
        if tls is not None:
            raise InvalidArgument(f"{address} is reached without TLS; write farpools://HOST:PORT, or leave out tls=")
        return None
    try:
        # Not at the top: builds without libssl-dev have no such module.
        from farpool.native.tls import TlsClient  # noqa: PLC0415
    except ImportError:
        raise TransportUnavailable(
            f"{address} asks for TLS, which this build of Farpool does not have: install libssl-dev and build it again"
        ) from None
    environment = os.environ if environment is None else environment
    chosen = tls or Tls()
    found = {
        field.name: getattr(chosen, field.name) or environment.get(f"FARPOOL_TLS_{field.name.upper()}") or None
        for field in fields(Tls)
    }
    if found["certificate"] and not found["key"]:
        _require_key_in(found["certificate"])
    return TlsClient(found["server_name"] or address.host, found["ca"], found["certificate"], found["key"])


def _require_key_in(certificate: str | os.PathLike[str]) -> None:
    try:
        content = Path(certificate).read_bytes()
    except OSError:
        return  # said by whoever opens it to use it
    if b"PRIVATE KEY-----" not in content:
        raise InvalidArgument(
            f"the certificate {os.fspath(certificate)!r} comes without its key: name the key's file in "
            "FARPOOL_TLS_KEY or farpool.Tls(key=...), or append it to the certificate's file"
        )


def refuse_clear(address: Address, tls: TlsClient | None) -> None:
    """Raise ``InvalidArgument`` if *address* is one of TLS, and *tls* is none: whoever is in between could answer."""
    if address.tls and tls is None:
        raise InvalidArgument(f"{address} is reached by TLS alone, and was to be in clear; nothing was sent")


def encrypt(fd: int, address: Address, tls: TlsClient | None, deadline: float) -> TlsConnection | None:
    """Return the encryption of the connected socket *fd*, which is closed if there cannot be any; None in clear."""
    if tls is None:
        return None
    try:
        return tls.connect(fd, str(address), deadline, shared=True)
    except BaseException:
        os.close(fd)
        raise
