from collections.abc import Callable, Mapping
from typing import Any

from farpool.native.loans import Loans
from farpool.native.rdma_lane import Lane
from farpool.native.remote_region import RemoteRegion
from farpool.native.verbs import MemoryRegion

class RdmaPeer(Loans):
    """The queue pairs of one session: opened when needed, at most *limit*, each used by one operation at a time.

    *open_lane(seconds)* makes a connected one; *register(object, address, nbytes)* registers a caller's buffer.
    *max_message* is the most bytes of one work request. Thread-safe.
    """

    def __init__(
        self,
        open_lane: Callable[[float], Lane],
        connected: Callable[[], bool],
        register: Callable[[object, int, int], MemoryRegion],
        max_message: int,
        limit: int = 4,
    ) -> None: ...
    @property
    def max_message(self) -> int: ...
    def keep(self, lane: Lane) -> None:
        """Take in a lane that was opened outside of an operation."""
    def reset(self, incarnation: int) -> None:
        """Give up the idle queue pairs but those to this start of the server: what they led to is gone."""
    def close(self) -> None:
        """Close the idle queue pairs, and the others when their operation ends. Idempotent."""

class RdmaRegion(RemoteRegion):
    """One attached slab, reached by one-sided operations of the device.

    *base* and *rkey* are its memory at the server, of the server's start *incarnation*.
    """

    @property
    def incarnation(self) -> int: ...
    def __init__(
        self,
        peer: RdmaPeer,
        base: int,
        rkey: int,
        generation: int,
        nbytes: int,
        writable: bool,
        atomics: bool,
        incarnation: int,
        label: str,
        timeout: float,
        renew: Callable[[float], Mapping[str, Any]],
        on_close: Callable[[], object] | None,
    ) -> None: ...
