"""What awaitable calls return that open something (``await`` gives it, ``async with`` closes it too), or close it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Closing", "Opening"]


class Closing:
    """What ``close`` returns: the work is under way already, and awaiting it waits for its end."""

    def __init__(self, finish: Callable[[], Awaitable[None]]) -> None:
        self._finish = finish

    def __await__(self) -> Generator[Any, None, None]:
        return self._finish().__await__()


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
