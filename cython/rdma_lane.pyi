from farpool.native.verbs import MemoryRegion, QueuePair

class Lane:
    """One connected queue pair and the memory to work it with; borrowed by one operation at a time.

    *staging* is registered memory of our own. The lane polls for *spin* seconds before it waits for an event.
    """

    def __init__(self, pair: QueuePair, staging: MemoryRegion, spin: float) -> None: ...
    @property
    def pair(self) -> QueuePair: ...
    @property
    def staging(self) -> MemoryRegion: ...
    @property
    def status(self) -> int:
        """The verbs status of the completion that broke the lane; 0 while it works."""
