import socket
from collections.abc import Callable

from farpool.native.loans import Loans
from farpool.native.tls import TlsClient

class TcpChannel:
    """One data connection; its peer makes it."""

def check_hello(status: int, detail: int, host: str, port: int) -> None:
    """Raise what the answer to a hello means, unless it lets the client in."""

class TcpPeer(Loans):
    """The data connections of one session: opened when needed, at most *limit*, each used by one operation at a time.

    Thread-safe. If the server refuses one more, operations take turns with those that there are. *reach* connects a
    socket: it is given host, port, deadline (``time.monotonic()``), and what errors call it. New connections are
    encrypted with *tls*, and the server's certificate is checked as it says.
    """

    def __init__(
        self, reach: Callable[[str, int, float, str], socket.socket], limit: int = 8, tls: TlsClient | None = None
    ) -> None: ...
    @property
    def reach(self) -> Callable[[str, int, float, str], socket.socket]:
        """What connects a socket."""
    @property
    def tls(self) -> TlsClient | None:
        """What new connections are encrypted with."""
    @property
    def hello(self) -> bytes:
        """The header that opens a data connection."""
    @property
    def version(self) -> int:
        """How often the credentials have changed."""
    @property
    def address(self) -> tuple[str, int]: ...
    def configure(self, host: str, port: int, slot: int, secret: bytes, epoch: int) -> int:
        """Set where and with what new connections are opened, and return the version of that.

        Connections with other credentials are given up; so are those to another start of the server, its *epoch*.
        """
    def close(self) -> None:
        """Close the idle connections, and the others when their operation ends. Idempotent."""
