from typing_extensions import Buffer

class EqualParts:
    """Parts of one size, at *offsets* of a slab, and their bytes in one buffer, which is borrowed while this lives.

    Made by a region's ``describe``, or ``list_parts``. It shows the bytes, part by part, as a buffer of its own.
    """

    @property
    def count(self) -> int: ...
    @property
    def part_nbytes(self) -> int: ...
    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
    def listed(self) -> list[tuple[int, memoryview]]:
        """Return each part as its offset and its bytes, for those who need Python objects."""
    def __buffer__(self, flags: int) -> memoryview: ...

def list_parts(
    offsets: Buffer, nbytes: int, buffer: Buffer, limit: int, label: str, *, inward: bool
) -> list[tuple[int, memoryview]]:
    """Return each part as its offset and its bytes in *buffer*, which is filled if *inward*; for ``readv``, ``writev``.

    Raises ``OutOfBounds`` for a part that is not within the *limit* bytes of slab *label*, ``UnsuitableBuffer`` for
    offsets that are no integers of 8 bytes, and ``InvalidArgument`` for a buffer of another size than the parts'.
    """
