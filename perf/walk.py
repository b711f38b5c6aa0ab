"""Where operations work inside the slab: the same places for us and for our limit."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final, TypeAlias

from farpool.perf.rows import BULK_NBYTES

if TYPE_CHECKING:  # the raw ping-pong's process has no use for numpy, which takes a slow machine long to import
    import numpy as np
    import numpy.typing as npt

__all__ = ["NEAR_NBYTES", "SLAB_NBYTES", "Bytes", "Int64Array", "filled", "places", "scattered", "window"]

Int64Array: TypeAlias = "array[int]"
"""Numbers of 8 bytes that the loops in C take as they are."""
Bytes: TypeAlias = "bytearray | npt.NDArray[np.uint8]"

SLAB_NBYTES: Final = 32 << 20
"""Far over a core's own caches, so that bulk copies come from memory or from a cache that all cores share."""

NEAR_NBYTES: Final = 256 << 10
CACHE_LINE: Final = 64
PRIME: Final = 4099


def window(nbytes: int) -> int:
    """Return through how many bytes calls of *nbytes* walk."""
    return NEAR_NBYTES if nbytes < BULK_NBYTES else SLAB_NBYTES


def places(nbytes: int, batch: int = 1) -> Int64Array:
    """Return the offsets at which parts of *nbytes* are used in turn, whole batches of them."""
    step = max(nbytes, CACHE_LINE)
    count = window(nbytes * batch) // step
    return array("q", range(0, (count - count % batch) * step, step))


def scattered(nbytes: int, count: int) -> Int64Array:
    """Return *count* offsets of parts of *nbytes*, all over the slab in an order that no prefetcher foresees."""
    slots = SLAB_NBYTES // nbytes
    return array("q", (number * PRIME % slots * nbytes for number in range(count)))


def filled(nbytes: int) -> bytearray:
    """Return a buffer with pages of its own; untouched ones would all be the kernel's one page of zeros."""
    return bytearray(b"\1") * nbytes
