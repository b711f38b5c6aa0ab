from typing import Final

LOCAL: Final[int]
READ: Final[int]
WRITE: Final[int]
ATOMIC: Final[int]

def prepare_for_fork() -> None:
    """Let this process fork although memory is registered (ibv_fork_init). Once, before any device is opened."""

def device_names() -> list[str]:
    """Return the names of the RDMA devices that libibverbs finds."""

class Device:
    """An open RDMA device and one of its ports. Closes its domains first. Raises ``TransportUnavailable``."""

    def __init__(self, name: str, port: int = 1) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...
    def limits(self) -> dict[str, int]:
        """Return what it can: max_mr_size (bytes), max_mr, max_qp, max_qp_wr, max_reads_in, max_reads_out, atomics."""
    def port_state(self) -> dict[str, int]:
        """Return the port's active (0 or 1), mtu (as an ibv_mtu), lid, ethernet (0 or 1), gids, max_message (bytes)."""
    def gid(self, index: int) -> bytes:
        """Return the 16 bytes of the port's GID at *index*."""
    def close(self) -> None: ...

class ProtectionDomain:
    """Memory regions and queue pairs that may work together. Closes both first."""

    def __init__(self, device: Device) -> None: ...
    @property
    def device(self) -> Device: ...
    def register(self, owner: object, address: int, nbytes: int, access: int) -> MemoryRegion:
        """Register memory that *owner* keeps alive; *access* is a sum of LOCAL, READ, WRITE, ATOMIC."""
    def close(self) -> None: ...

class MemoryRegion:
    """Memory that a device may reach. ``close`` deregisters: its keys fail from then on."""

    @property
    def domain(self) -> ProtectionDomain: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def lkey(self) -> int: ...
    @property
    def rkey(self) -> int: ...
    def close(self) -> None: ...

class QueuePair:
    """One reliable connection with a completion queue and channel of its own."""

    incarnation: int
    """Number of the server's start that it belongs to, or is connected to; 0 before."""

    def __init__(self, domain: ProtectionDomain, *, depth: int, max_inline: int = 0) -> None: ...
    @property
    def domain(self) -> ProtectionDomain: ...
    @property
    def number(self) -> int: ...
    @property
    def psn(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def reads(self) -> int: ...
    @property
    def max_inline(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def fileno(self) -> int:
        """Return the completion channel's descriptor."""
    def connect(
        self,
        *,
        number: int,
        psn: int,
        gid: bytes,
        lid: int,
        gid_index: int,
        mtu: int,
        reads_in: int,
        reads_out: int,
        remote_access: int,
    ) -> None:
        """Connect to the peer's queue pair; both sides do so, in any order. Raises ``TransportUnavailable``."""
    def failed(self) -> bool:
        """Tell whether the device has put the queue pair in its error state."""
    def close(self) -> None:
        """Destroy the queue pair: the device touches no memory for it afterwards. Idempotent."""
