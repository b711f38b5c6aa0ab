from typing import Final

from farpool.native.cipher import Encryptor
from farpool.native.slab_table import SlabTable

EVENT_NAMES: Final[dict[int, str]]

class TcpReactor:
    """The tcp data plane of a server: native threads that serve slab memory over data connections.

    *listener* is the descriptor of a listening, non-blocking TCP socket; the caller keeps and closes it. Nothing here
    needs the GIL once started. All methods are called from one thread. With an *encryptor* clients may speak TLS.
    """

    def __init__(
        self,
        table: SlabTable,
        listener: int,
        *,
        threads: int = 1,
        max_connections: int = 4096,
        max_session_connections: int = 64,
        hello_timeout: float = 5.0,
        encryptor: Encryptor | None = None,
    ) -> None: ...
    def start(self) -> None: ...
    def run_worker(self, index: int) -> None:
        """Serve until ``stop``; the body of one thread."""
    def stop(self) -> None:
        """End the threads and close every data connection. Idempotent."""
    def admit(self, session: int, secret: bytes, encrypted: bool = False, share: int = 0) -> int:
        """Let *session* open data connections with *secret* (32 bytes); return the slot that its hello names.

        If *encrypted*, they must be. Connections of one *share* have a bounded part of each turn together. Raises
        ``PoolFull``.
        """
    def share_out(self, several: bool) -> None:
        """Leave room for others' connections (one tenant has at most as many as are free), or let one have all."""
    def expel(self, slot: int) -> None:
        """Close the session's data connections soon, and refuse new ones at once."""
    def fileno(self) -> int:
        """Return a descriptor that is readable when ``events`` has some."""
    def changes(self) -> int:
        """Return a descriptor that is readable when ``changed`` has some."""
    def changed(self) -> list[int]:
        """Return and forget handles of attachments with a word that somebody waits for, and that was stored to.

        A bounded number at a time; the descriptor stays readable while there are more.
        """
    def events(self) -> list[tuple[str, str, int, int]]:
        """Return and forget what happened since the last call: (kind, peer's address, number, session)."""
    def overlooked(self) -> int:
        """Return and forget how many refusals found no place among the events."""
    def counters(self) -> dict[str, int]:
        """Return the counters since the start: operations by name, bytes_read, bytes_written, errors, connections."""
