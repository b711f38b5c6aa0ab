from os import PathLike
from typing import TypeAlias

from farpool.native.cipher import Encryption, Encryptor
from farpool.protocol.errors import FarpoolError

_File: TypeAlias = str | PathLike[str]

def kernel_encrypts() -> bool:
    """Tell whether this host's kernel can encrypt TLS by itself: its module ``tls`` is loaded."""

def reason_of_failure(code: int) -> str:
    """Return what OpenSSL says of one of its numbers."""

def refuses_certificate(code: int) -> bool:
    """Tell whether it says that the other side's certificate was refused, or missed."""

class TlsServer(Encryptor):
    """What a server shows to those who connect, and asks of them. Thread-safe.

    Files are PEM; *certificate* may hold a chain. With *client_ca* clients are asked for a certificate that it has
    signed, and must have one if *require*. With *kernel* the kernel encrypts what is sent, if it can. Raises
    ``InvalidArgument`` for files that cannot be used.
    """

    def __init__(
        self,
        certificate: _File,
        key: _File,
        client_ca: _File | None = None,
        require: bool = False,
        *,
        kernel: bool = False,
    ) -> None: ...
    def load(self, certificate: _File, key: _File, client_ca: _File | None = None, require: bool = False) -> None:
        """Take these files for connections that come from now on; those there are keep what they have."""

class TlsConnection(Encryption):
    """The encryption of one connection that this process has opened. ``TlsClient`` makes it.

    ``greet``, ``send`` and ``receive`` never wait, for callers with an event loop. Whoever transfers over the socket by
    this encryption keeps it alive.
    """

    @property
    def version(self) -> str:
        """Version of TLS that was agreed on."""
    @property
    def suite(self) -> str:
        """Cipher suite that was agreed on."""
    def greet(self) -> int:
        """Go on with the handshake; return what ``poll`` must wait for, 0 when it is done.

        Raises ``AuthenticationFailed``, ``ProtocolError``, ``ServerLost``.
        """
    def send(self, data: bytes) -> int:
        """Send what the socket takes of *data*, and return how much; raise ``BlockingIOError`` if nothing."""
    def receive(self, nbytes: int) -> bytes:
        """Return at most *nbytes* that have come, none at the end; raise ``BlockingIOError`` if there are none yet."""
    def failure(self) -> FarpoolError | None:
        """Return the error that TLS has ended the connection with; None if it has not."""

class TlsClient:
    """What a client asks of servers' certificates, and shows them. Thread-safe.

    A certificate must be for *name*, a host or an IP address, and signed by *ca*, a file or folder (by the system's
    authorities without one). *key* may be left out if it is in the file of *certificate*. Raises ``InvalidArgument``
    for files that cannot be used.
    """

    def __init__(
        self, name: str, ca: _File | None = None, certificate: _File | None = None, key: _File | None = None
    ) -> None: ...
    @property
    def name(self) -> str: ...
    def begin(self, fd: int, label: str, *, shared: bool = False) -> TlsConnection:
        """Return the encryption of the connected socket *fd* before its handshake; *label* names the server in errors.

        If *shared*, several threads may use it at once, and it never waits for the socket.
        """
    def connect(self, fd: int, label: str, deadline: float, *, shared: bool = False) -> TlsConnection:
        """Return the encryption of the connected, blocking socket *fd* after its handshake.

        *deadline* is seconds of ``time.monotonic()``. Raises ``AuthenticationFailed``, ``DeadlineExceeded``,
        ``ProtocolError``, ``ServerLost``; runs signal handlers while it waits.
        """
