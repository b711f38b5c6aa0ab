from typing_extensions import Buffer

class BareVerbs:
    """Two connected queue pairs of one device in this process, and loops in C over them: the limit of rdma.

    What perftest's ``ib_read_lat`` and ``ib_write_lat`` do: post, and poll until it is complete. Batches are one chain
    of requests with one completion. *nbytes* is the memory that the loops reach.
    """

    def __init__(self, device: str, port: int, gid_index: int, nbytes: int) -> None: ...
    def move(
        self, inward: bool, offsets: Buffer, nbytes: int, batch: int, calls: int, samples: Buffer, seconds: float
    ) -> int:
        """Read or write *batch* parts of *nbytes* at each offset in turn, *calls* batches a sample."""
    def add(self, offsets: Buffer, calls: int, samples: Buffer, seconds: float) -> int:
        """Add 1 to the word at each offset in turn, *calls* additions a sample; return the samples."""
    def close(self) -> None: ...
