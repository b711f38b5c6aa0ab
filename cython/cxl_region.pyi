from collections.abc import Callable, Iterable
from typing import Any

from typing_extensions import Buffer

from farpool.native.equal_parts import EqualParts
from farpool.native.line_model import LineModel
from farpool.native.mapping import Mapping
from farpool.protocol.errors import StaleSlab

class CxlRegion:
    def __init__(
        self,
        mapping: Mapping,
        nbytes: int,
        generations: Mapping,
        slot: int,
        generation: int,
        writable: bool,
        atomics: bool,
        label: str,
        on_close: Callable[[], object] | None,
        coherence: str = "hardware",
        model: LineModel | None = None,
        watched: int = 0,
        session_word: int = 0,
        session: int = 0,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    follow: Callable[[StaleSlab, float | None], Any] | None
    """Called with the ``StaleSlab`` that an operation is about to raise: returns the region of the memory that has
    replaced this one, which does it instead, or raises."""
    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...
    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes: ...
    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...
    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...
    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...
    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int: ...
    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int: ...
    def describe(self, offsets: Buffer, nbytes: int, buffer: Buffer, inward: bool) -> EqualParts:
        """Return parts of one size, all of which were found to be in reach, to be moved by ``move_parts``."""
    def move_parts(self, parts: EqualParts, first: int, count: int) -> None:
        """Read or write *count* parts from the number *first* on, or as many as there are."""
    def load(self, offset: int, timeout: float | None = None) -> int: ...
    def store(self, offset: int, value: int, timeout: float | None = None) -> None: ...
    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int: ...
    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int: ...
    def park(self, offset: int, expected: int, seconds: float) -> int:
        """Return the aligned word at *offset* once it is not *expected*, or as it is after *seconds*.

        Stores of ours wake it, and it looks again by itself, after a millisecond at the latest.
        """
    def notify(self, offset: int) -> None:
        """Let whoever waits for the aligned word at *offset* look at it now."""
    def flush(self, offset: int = 0, nbytes: int | None = None) -> None: ...
    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None: ...
    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview: ...
    def retire(self) -> None:
        """Raise ``StaleSlab`` from every operation from now on; the memory stays mapped for the views that live."""
    def close(self) -> None: ...
    def leave_in_child(self) -> None:
        """Unmap in a forked child what no view shows there; operations raise ``ForkedSession`` as before."""
    def __buffer__(self, flags: int) -> memoryview: ...
