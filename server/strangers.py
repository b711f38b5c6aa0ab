"""Connections that have not said hello yet: how many there may be, and who goes when there are too many."""

from __future__ import annotations

from typing import Final, Generic, TypeVar

__all__ = ["MAX_STRANGERS", "Strangers"]

C = TypeVar("C")

MAX_STRANGERS: Final = 256
"""Of each kind, local and remote: a flood from the network shuts no local process out."""


class Strangers(Generic[C]):
    """The connections of either kind, the oldest first. Not thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[bool, dict[C, None]] = {True: {}, False: {}}

    def add(self, connection: C, *, local: bool) -> C | None:
        """Take in a connection; return the one that must go for it, if there are too many.

        The oldest goes: a client of ours says hello at once, so that it is in before a flood has pushed it out.
        """
        waiting = self._waiting[local]
        waiting[connection] = None
        return next(iter(waiting)) if len(waiting) > MAX_STRANGERS else None

    def remove(self, connection: C) -> None:
        """Forget a connection that said hello or ended; harmless for one that is not here."""
        for waiting in self._waiting.values():
            waiting.pop(connection, None)
