"""TLS on the server: its certificate and key on both planes, and one control connection's TLS without I/O.

The control plane speaks TLS by Python's ssl module, bytes in and bytes out; the data plane by the native module
``tls``. Both are given the same files, and read them again when the settings are reloaded.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final, cast

import structlog

from farpool.native.cipher import Encryptor
from farpool.protocol.errors import InvalidArgument
from farpool.server.settings import ConfigurationError, TlsSettings

__all__ = ["ControlTls", "Keys", "begins_tls"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.tls")

CIPHERS_OF_1_2: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""With forward secrecy; TLS 1.3 has no others."""

READ_BYTES: Final = 1 << 16


class Keys:
    """What the server shows to those who connect, and asks of them.

    Raises:
        ConfigurationError: a file cannot be used, or Farpool was built without TLS.
    """

    def __init__(self, settings: TlsSettings) -> None:
        try:
            # Not at the top: builds without libssl-dev have no such module.
            from farpool.native.tls import TlsServer  # noqa: PLC0415

            self._data = TlsServer(*_files_of(settings), kernel=settings.kernel)
        except ImportError:
            raise ConfigurationError(
                "this build of Farpool has no TLS: install libssl-dev and build it again, or leave out [tls]"
            ) from None
        except InvalidArgument as error:
            raise ConfigurationError(f"setting tls: {error.message}") from None
        self._control = _context(settings)
        _warn_of_readers(settings.key)

    @property
    def encryptor(self) -> Encryptor:
        """What data connections are encrypted with."""
        return self._data

    def load(self, settings: TlsSettings) -> None:
        """Read the files again, for connections that come from now on.

        Raises:
            ConfigurationError: one cannot be used; then all stays as it was.
        """
        control = _context(settings)
        try:
            self._data.load(*_files_of(settings))
        except InvalidArgument as error:
            raise ConfigurationError(f"setting tls: {error.message}") from None
        self._control = control

    def channel(self) -> ControlTls:
        """Return the TLS of a new control connection."""
        return ControlTls(self._control)


class ControlTls:
    """TLS of one control connection as its server: bytes from the socket in, bytes for the socket out."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.begun = False
        """Whether a byte has come."""
        self.greeted = False
        """Whether the handshake is done: nothing can be sent before."""
        self.ended = False
        """Whether the client has said that it sends no more."""

    def receive(self, data: bytes) -> bytes:
        """Return what the bytes *data* from the socket have brought; see :meth:`outgoing` afterwards.

        Raises:
            ssl.SSLError: the handshake or a record is not as it must be.
        """
        self.begun = True
        self._incoming.write(data)
        found: list[bytes] = []
        try:
            if not self.greeted:
                self._tls.do_handshake()
                self.greeted = True
            while piece := self._tls.read(READ_BYTES):
                found.append(piece)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True
        return b"".join(found)

    def seal(self, data: bytes) -> bytes:
        """Return what must go to the socket so that the client receives *data*."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self.outgoing()

    def outgoing(self) -> bytes:
        """Return what TLS itself has for the socket."""
        return self._outgoing.read()

    def certificate_name(self) -> str | None:
        """Return whom the client's certificate names, if it has shown one: its common name, or else its first other."""
        certificate = cast("dict[str, Any]", self._tls.getpeercert() or {})
        for part in certificate.get("subject", ()):
            for kind, value in part:
                if kind == "commonName":
                    return str(value)
        for kind, value in certificate.get("subjectAltName", ()):
            if kind in ("DNS", "email", "URI"):
                return str(value)
        return None


def begins_tls(data: bytes) -> bool:
    """Tell whether the first bytes of a connection are a handshake of TLS."""
    return data[:1] == b"\x16"


def _files_of(settings: TlsSettings) -> tuple[str, str, str | None, bool]:
    return settings.certificate, settings.key, settings.client_ca or None, settings.requires_certificate


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_OF_1_2)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    try:
        # A key behind a password would be asked for on the terminal.
        context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
        if settings.client_ca:
            context.load_verify_locations(settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED if settings.requires_certificate else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"setting tls: its files cannot be used: {error}") from None
    return context


def _warn_of_readers(key: str) -> None:
    mode = Path(key).stat().st_mode & 0o777
    if mode & 0o077:
        log.warning("other users can read the key of TLS", key=key, mode=f"{mode:04o}", mend=f"chmod 600 {key}")
