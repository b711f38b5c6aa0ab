from farpool.native.loans import Loans
from farpool.native.tls import TlsClient

class TcpChannel:
    """One data connection; its peer makes it."""

class TcpPeer(Loans):
    """The data connections of one session: opened when needed, at most *limit*, each used by one operation at a time.

    Thread-safe. New connections are encrypted with *tls*, and the server's certificate is checked as it says.
    """

    def __init__(self, limit: int = 8, tls: TlsClient | None = None) -> None: ...
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
