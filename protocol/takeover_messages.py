"""How a server process takes over from a running one: two requests over the Unix socket, from an administrator."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from farpool.protocol.message_base import Done, Reply, Request

__all__ = ["TAKEOVER_VERSION", "Inheritance", "LetGo", "Takeover"]

TAKEOVER_VERSION = 1
"""What both sides of a takeover must agree on: these messages, and what the descriptors mean."""


class Inheritance(Reply, frozen=True, kw_only=True):
    """What the descriptors are that come with the first byte of this reply (``SCM_RIGHTS``)."""

    descriptors: list[str]
    """``lock`` of the arena, and a listening socket for each other name, in the order of the descriptors."""
    pid: int
    exposure: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """Who reaches the running server, and who gets in, by setting; empty if it does not tell."""


class Takeover(Request, frozen=True, kw_only=True):
    """Give me what a server with these settings needs, if they are yours. Nothing changes yet."""

    operation: ClassVar[str] = "takeover"
    reply: ClassVar[type[Reply]] = Inheritance
    administrative: ClassVar[bool] = True
    version: int
    catalog: int
    """Newest schema of the catalog that the successor knows."""
    arena: str
    """Real path of the directory or device."""
    state_dir: str = ""
    """Real path of a device's state directory."""


class LetGo(Request, frozen=True, kw_only=True):
    """I have the descriptors: stop, without ending a session. The connection's end says that it is done."""

    operation: ClassVar[str] = "let_go"
    reply: ClassVar[type[Reply]] = Done
    administrative: ClassVar[bool] = True
