class SlabTable:
    """The native table that data planes read without locks: which session may reach which bytes, and how.

    An entry is one attachment; its *handle* is what the wire carries. ``insert`` and ``remove`` come from one thread;
    data planes pin entries from any.
    """

    def __init__(self, capacity: int = 1048576) -> None: ...
    @property
    def capacity(self) -> int: ...
    def insert(self, owner: object, address: int, nbytes: int, generation: int, session: int, writable: bool) -> int:
        """Add an attachment and return its handle; *owner* keeps the memory until ``remove``. Raises ``PoolFull``."""
    def watch(self, handle: int, mark: int) -> None:
        """Say which word of the slab somebody waits for: its offset + 1; 0 is none, all ones are several."""
    def remove(self, handle: int) -> None:
        """End an attachment, and return when no operation on it is in flight. An unknown handle is ignored."""
    def __len__(self) -> int: ...
