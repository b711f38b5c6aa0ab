"""The messages about memory that ended sessions may still have mapped, and the operator's word that they do not."""

from __future__ import annotations

from typing import ClassVar

from farpool.protocol.message_base import Reply, Request

__all__ = ["Quarantined", "Release"]


class Quarantined(Reply, frozen=True, kw_only=True):
    """What ended sessions of a host may still have mapped; as the reply to ``release``, what has come back of it."""

    host: str
    """Its address, or ``local`` for the server's own; empty for all hosts together."""
    sessions: int
    slabs: int
    nbytes: int


class Release(Request, frozen=True, kw_only=True):
    """The operator's word: nothing on ``host`` maps what its ended sessions had. For the server's own user and root."""

    operation: ClassVar[str] = "release"
    reply: ClassVar[type[Reply]] = Quarantined
    administrative: ClassVar[bool] = True
    host: str
