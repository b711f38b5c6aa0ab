"""What an awaitable call returns that opens something: ``await`` gives it, ``async with`` gives and closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Opening"]


class Closed(Protocol):
    """What closes itself at the end of a block."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


T = TypeVar("T", bound=Closed)


class Opening(ABC, Generic[T]):
    """Something to be."""

    _opened: T | None = None

    @abstractmethod
    async def _open(self) -> T:
        """Open it."""

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, traceback)
