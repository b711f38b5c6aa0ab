"""The messages of commits: a draft is made of a slab, written, and takes the slab's place as a whole."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from farpool.protocol.message_base import Reply, Request
from farpool.protocol.slab_messages import Attached, SlabInfo

__all__ = ["MOST_DRAFTS", "Commit", "Committed", "DraftEnd", "Reserve"]

MOST_DRAFTS = 1000
"""Drafts that one commit can publish together: what is said of each is about 40 bytes, in a request of 64 KiB."""


class Reserve(Request, frozen=True, kw_only=True):
    """Make a draft of a slab, attached over ``transport``: zeroes, or the slab's own bytes with ``copy``."""

    operation: ClassVar[str] = "reserve"
    reply: ClassVar[type[Reply]] = Attached
    once: ClassVar[bool] = True
    id: int
    generation: int
    transport: str
    copy: bool = False


class DraftEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How the writing of one draft has ended."""

    id: int
    generation: int
    detached: str = ""
    """The transport over which the client has let go of it, as ``detach`` would say; empty if it did so before."""
    checksum: bool = True
    """Whether its checksums are to be kept."""
    known: bytes = b""
    """The blocks whose checksums the writer knows, as bits."""
    digest: int = 0
    """The crc32c of the checksums of these blocks: what it must be on the server too."""


class Committed(Reply, frozen=True, kw_only=True):
    """The slabs as they are now, in the order of the drafts."""

    slabs: list[SlabInfo]


class Commit(Request, frozen=True, kw_only=True):
    """Let drafts take the place of their slabs' bytes: all of them, or none."""

    operation: ClassVar[str] = "commit"
    reply: ClassVar[type[Reply]] = Committed
    once: ClassVar[bool] = True
    drafts: list[DraftEnd]
