"""The signatures of a slab's data methods, which are native and assigned one by one.

``T_co`` is what a call returns: ``int`` on a slab, a coroutine of it on its awaitable twin.
"""

# ruff: noqa: D102  the classes say it all

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Batch", "CompareSwap", "FetchAdd", "Gather", "Load", "Read", "Scatter", "Store", "Sync", "Transfer", "View"]

T_co = TypeVar("T_co", covariant=True)


class Transfer(Protocol[T_co]):
    """``read_into`` and ``write``: move one buffer."""

    def __call__(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> T_co: ...


class Read(Protocol[T_co]):
    """``read``: make new bytes."""

    def __call__(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> T_co: ...


class Batch(Protocol[T_co]):
    """``readv`` and ``writev``: move many buffers."""

    def __call__(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> T_co: ...


class Gather(Protocol[T_co]):
    """``gather``: read many parts of one size."""

    def __call__(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> T_co: ...


class Scatter(Protocol[T_co]):
    """``scatter``: write many parts of one size."""

    def __call__(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> T_co: ...


class Load(Protocol[T_co]):
    """``load``: read one word."""

    def __call__(self, offset: int, timeout: float | None = None) -> T_co: ...


class Store(Protocol[T_co]):
    """``store``: set one word."""

    def __call__(self, offset: int, value: int, timeout: float | None = None) -> T_co: ...


class FetchAdd(Protocol[T_co]):
    """``fetch_add``: add to one word."""

    def __call__(self, offset: int, value: int, timeout: float | None = None) -> T_co: ...


class CompareSwap(Protocol[T_co]):
    """``compare_swap``: set one word if it is what we expect."""

    def __call__(self, offset: int, expected: int, new: int, timeout: float | None = None) -> T_co: ...


class Sync(Protocol):
    """``flush`` and ``invalidate``: make stores visible between hosts."""

    def __call__(self, offset: int = 0, nbytes: int | None = None) -> None: ...


class View(Protocol):
    """``view``: show the memory itself."""

    def __call__(self, offset: int = 0, nbytes: int | None = None) -> memoryview: ...
