"""The bytes of one control connection, by TLS or in clear: whole requests out of what came, frames for the socket.

No I/O here: the connection reads and writes. Whoever sends what no client of ours sends is found out.
"""

from __future__ import annotations

import ssl
from collections import deque
from typing import Final

from farpool.protocol.errors import AuthenticationFailed, FarpoolError, ProtocolError
from farpool.protocol.framing import MAX_REQUEST_BYTES, FrameDecoder
from farpool.server.encryption import ControlTls, begins_tls

__all__ = ["ControlStream", "Refused"]

FRAMES_AT_ONCE: Final = 32
"""Requests that are cut out of what has come before others have their turn."""

HTTP_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")

NO_CERTIFICATE: Final = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
"""What OpenSSL says where it is the client's certificate that is refused, or missed."""

NOT_OURS: Final = {
    **{f"{method} ".encode()[:4]: "an HTTP request" for method in HTTP_METHODS},
    b"PRI ": "an HTTP/2 request",
    b"SSH-": "an SSH client",
    b"\x16\x03": "a TLS handshake",
}
"""First bytes of clients that have the wrong port; all of them announce frames far over the limit."""


class Refused(Exception):
    """The connection cannot go on, for *reason*; *error* is what its client would understand, or was refused for."""

    def __init__(self, reason: str, error: FarpoolError | None = None, alert: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        self.alert = alert
        """TLS's last word for the socket, if it was TLS that failed."""


class ControlStream:
    """What has come over one connection, and how what is sent must look. In clear without *tls*."""

    def __init__(self, tls: ControlTls | None = None) -> None:
        self._tls = tls
        self._decoder = FrameDecoder(MAX_REQUEST_BYTES)
        self._requests: deque[bytes] = deque()
        self._beginning = b""

    @property
    def encrypted(self) -> bool:
        """Whether it is TLS."""
        return self._tls is not None

    @property
    def ready(self) -> bool:
        """Whether anything can be sent: TLS must have shaken hands before."""
        return self._tls is None or self._tls.greeted

    @property
    def ended(self) -> bool:
        """Whether the client has said by TLS that it sends no more."""
        return self._tls is not None and self._tls.ended

    @property
    def waiting(self) -> bool:
        """Whether requests were cut out that nobody has taken."""
        return bool(self._requests)

    @property
    def buffered(self) -> int:
        """Bytes of the request that is not whole yet."""
        return self._decoder.buffered

    def certificate_name(self) -> str | None:
        """Return whom the client's certificate names, if it has shown one."""
        return self._tls.certificate_name() if self._tls is not None and self._tls.greeted else None

    def receive(self, data: bytes) -> bytes:
        """Take what came from the socket; return what TLS itself has for it, and raise :class:`Refused`."""
        answer = b""
        if self._tls is not None:
            data = self._decrypt(self._tls, data)
            answer = self._tls.outgoing()
        self._beginning = b"" if self._requests else data[:4]
        self._decoder.add(data)
        return answer

    def _decrypt(self, tls: ControlTls, data: bytes) -> bytes:
        if not tls.begun and not begins_tls(data):
            self._tls = None  # it would not understand an answer by TLS
            error = ProtocolError("this port speaks TLS; use an address that begins with farpools://")
            raise _refused(data, "a client without TLS", error)
        try:
            return tls.receive(data)
        except ssl.SSLError as error:
            refusal = None
            if error.reason in NO_CERTIFICATE:
                why = getattr(error, "verify_message", "") or "it has shown none"
                refusal = AuthenticationFailed(f"the client's certificate was refused: {why}")
            raise Refused(f"no TLS: {error.reason or error}", refusal, tls.outgoing()) from error

    def fill(self) -> bool:
        """Cut some requests out of what has come, if none wait; return whether any do, and raise :class:`Refused`."""
        if not self._requests:
            beginning, self._beginning = self._beginning, b""
            try:
                self._requests.extend(self._decoder.take(FRAMES_AT_ONCE))
            except ProtocolError as error:
                raise _refused(beginning, str(error), error) from error
        return bool(self._requests)

    def take(self) -> bytes:
        """Return the payload of the oldest request that waits."""
        return self._requests.popleft()

    def seal(self, frame: bytes) -> bytes:
        """Return what must go to the socket so that the client receives *frame*."""
        return frame if self._tls is None else self._tls.seal(frame)

    def clear(self) -> None:
        """Forget the requests that nobody has taken."""
        self._requests.clear()


def _refused(beginning: bytes, reason: str, error: ProtocolError) -> Refused:
    """Return why what begins so is refused; clients of other protocols would not understand *error*."""
    other = NOT_OURS.get(beginning[:4]) or NOT_OURS.get(beginning[:2])
    return Refused(reason, error) if other is None else Refused(other)
