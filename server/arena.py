"""Where a server's slabs come from: what the server needs of an arena, whatever that is made of."""

from __future__ import annotations

from typing import Final, Protocol

from farpool.native.mapping import Mapping as MemoryMapping
from farpool.server.catalog import SlabRow
from farpool.server.generations import Generations
from farpool.transports.contract import Mode, ServedDevice

__all__ = ["MEMORY_FILE_SYSTEMS", "Arena"]

MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs", "hugetlbfs", "famfs", "devdax"})
"""File systems whose files are memory, and are gone when the machine restarts (but famfs); and a device of memory."""


class Arena(Protocol):
    """What the server needs of an arena: of a directory with a file a slab, or of a device cut into extents."""

    @property
    def path(self) -> str:
        """The directory or device."""
        ...

    @property
    def control_path(self) -> str:
        """Directory with the catalog, the generation words and the lock."""
        ...

    @property
    def control_fd(self) -> int:
        """Descriptor of that directory."""
        ...

    @property
    def lock_fd(self) -> int:
        """Descriptor that holds the arena for this server; a successor that has it too goes on holding it."""
        ...

    @property
    def volatile(self) -> bool:
        """Tell whether a restart of the machine empties the arena."""
        ...

    @property
    def file_system(self) -> str:
        """What the memory belongs to, one of ``MEMORY_FILE_SYSTEMS`` where it is memory."""
        ...

    @property
    def room(self) -> int:
        """Bytes that all slabs can take at most."""
        ...

    @property
    def reuses_memory(self) -> bool:
        """Tell whether a slab's memory may be another's later, so that every holder must have let go before."""
        ...

    @property
    def sees_holders(self) -> bool:
        """Tell whether :meth:`reclaim` sees by itself who holds memory; else nobody may when it is called."""
        ...

    @property
    def incoherent(self) -> bool:
        """Tell whether other hosts' stores show only once our cache lines are dropped, and ours once written back."""
        ...

    @property
    def device(self) -> ServedDevice | None:
        """The device that clients open by themselves; None where each slab has a file."""
        ...

    def open_generations(self) -> Generations:
        """Return the arena's generation words; the caller closes them."""
        ...

    def recover(self, rows: list[SlabRow], generations: Generations) -> None:
        """Take note of what the catalog knows, before anything else is asked."""
        ...

    def charge(self, nbytes: int) -> int:
        """Return the bytes that a slab of *nbytes* really takes."""
        ...

    def create(self, slab_id: int, nbytes: int) -> None:
        """Make the slab's zeroed memory, all of it reserved; raise ``PoolFull``. Any thread may call it."""
        ...

    def offset(self, slab_id: int) -> int | None:
        """Return where the slab begins on the device; None where it has a file."""
        ...

    def open_descriptor(self, slab_id: int, mode: Mode) -> int:
        """Return a new descriptor of the slab's memory; the caller closes it."""
        ...

    def map(self, slab_id: int, nbytes: int) -> MemoryMapping:
        """Return a new read-write mapping of the slab."""
        ...

    def remove(self, slab_id: int) -> None:
        """Let go of the slab's memory, whoever holds it; nothing happens if there is none. Any thread may call it."""
        ...

    def reclaim(self, slab_id: int) -> bool:
        """Take back the memory of a slab that has ended; return False while somebody is seen to hold it.

        Nothing happens if there is none. Any thread may call it, one at a time for a slab; raises ``OSError``.
        """
        ...

    def slabs(self) -> dict[int, int]:
        """Return the slabs that have memory, with its length in bytes."""
        ...

    def keep_reserve(self) -> bool:
        """Hold some room back for the catalog of the next start; return whether there was room for it."""
        ...

    def use_reserve(self) -> None:
        """Give the room that was held back to whatever comes next."""
        ...

    def discard(self) -> None:
        """Remove the arena if this very object made it, when its server has not come up."""
        ...

    def close(self) -> None:
        """Give the arena up to the next server; slabs stay."""
        ...
