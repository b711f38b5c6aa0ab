import asyncio
from collections.abc import Sequence
from typing import Final

from typing_extensions import Buffer

from farpool.native.equal_parts import EqualParts
from farpool.native.rdma_region import RdmaRegion
from farpool.native.verbs import MemoryRegion, QueuePair

SLOT_BYTES: Final[int]

class RdmaPipeline:
    """One queue pair of an event loop, with many operations in flight. Used from the loop's thread alone.

    *staging* is registered memory, cut into slots of ``SLOT_BYTES``: an operation works on a slot of its own and is
    copied from or to the caller's buffers, so that a cancelled one touches nothing of the caller's. Deadlines are
    seconds of ``time.monotonic()``. When the connection breaks every future fails with ``ServerLost``, and the one
    whose key was refused with ``StaleSlab``.
    """

    def __init__(self, pair: QueuePair, staging: MemoryRegion, loop: asyncio.AbstractEventLoop) -> None: ...
    @property
    def incarnation(self) -> int:
        """Number of the server's start that the queue pair is connected to."""
    @property
    def closed(self) -> bool: ...
    @property
    def pending(self) -> int:
        """Operations that have not ended, cancelled ones included."""
    def move(
        self, region: RdmaRegion, parts: Sequence[tuple[int, Buffer]], writes: bool, deadline: float
    ) -> asyncio.Future[int]:
        """Read or write at most ``SLOT_BYTES`` in all; the future's result is the bytes moved."""
    def move_parts(self, region: RdmaRegion, parts: EqualParts, deadline: float) -> asyncio.Future[int]:
        """Read or write parts of one size, ``SLOT_BYTES`` at most; the future's result is the bytes moved."""
    def word(
        self, region: RdmaRegion, code: str, offset: int, length: int, operand: int, deadline: float
    ) -> asyncio.Future[int]:
        """Do ``load``, ``store``, ``fetch_add`` or ``compare_swap``; the future's result is the old value."""
    def on_event(self) -> None:
        """Finish what has completed; the loop calls it."""
    def on_timer(self) -> None:
        """Fail the operations whose deadline has passed; the loop calls it."""
    def close(self) -> None:
        """Fail what is in flight with ``ServerLost`` and destroy the queue pair. Idempotent."""
