from farpool.native.cipher import Encryption

class ControlChannel:
    """The client's end of a control connection: whole frames out and in, and the heartbeat that needs no GIL.

    Takes over the connected, blocking stream socket *fd*. ``send`` may be called by several threads,
    and runs beside ``receive``; ``receive`` by one thread at a time. Deadlines are seconds of ``time.monotonic()``.
    After ``ServerLost``, ``ProtocolError``, or ``DeadlineExceeded`` raised from the middle of a frame the channel
    is ``broken`` and every later call raises ``ServerLost``. With an *encryption*, one that threads may share, every
    byte goes through it; a certificate that the server refuses raises ``AuthenticationFailed`` in ``receive``.
    """

    def __init__(self, fd: int, max_frame: int, encryption: Encryption | None = None) -> None: ...
    @property
    def broken(self) -> bool: ...
    def fileno(self) -> int: ...
    def send(self, frame: bytes, deadline: float) -> None:
        """Send one whole frame. Raises ``ServerLost``, ``DeadlineExceeded``; runs signal handlers while it waits."""
    def receive(self, deadline: float) -> bytes:
        """Return the payload of the next frame.

        A deadline or Ctrl-C leaves the channel whole, in the middle of a frame too: what has come is kept for the
        next call. Raises ``ServerLost``, ``DeadlineExceeded``, ``ProtocolError``."""
    def ended(self) -> bool:
        """Tell without blocking whether the peer has closed the connection (or it broke); bytes may still wait."""
    def start_heartbeat(self, frame: bytes, interval: float) -> None:
        """Send *frame* every *interval* seconds from a native thread until ``close``; a full socket skips a beat.

        The thread never takes the GIL. Replaces an earlier heartbeat."""
    def close(self) -> None:
        """Stop the heartbeat and close the socket. Idempotent; any thread may call it. A thread that waits in
        ``receive`` gets ``ServerLost``. In a forked child it closes the child's descriptor alone."""
