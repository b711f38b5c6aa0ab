from types import TracebackType
from typing import Self

class Mapping:
    """One shared mapping of a file's bytes, owned by this object. Thread-safe.

    ``nbytes`` is rounded up to whole pages for the kernel, and kept as asked. The buffer protocol shows the bytes
    (read-only if not ``writable``); ``close`` raises ``RegionInUse`` while such views live. The descriptor is not
    kept: the caller may close it at once. A *guarded* mapping outlives a file that is cut short, where
    ``bus_guard.install`` was called: it shows zeroes then, and is ``lost``.

    Raises ``OSError`` from mmap(2).
    """

    def __init__(self, fd: int, nbytes: int, *, writable: bool, offset: int = 0, guarded: bool = False) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> bool:
        """Whether it shows zeroes of ours, since its file was cut short."""
    @property
    def exports(self) -> int:
        """Views of the buffer protocol that are alive now."""
    def load(self, offset: int) -> int:
        """Return the aligned unsigned 8-byte word at *offset*, with acquire order."""
    def store(self, offset: int, value: int) -> None:
        """Set the aligned word at *offset*, with release order; ``ReadOnly`` if the mapping is."""
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __buffer__(self, flags: int) -> memoryview: ...
