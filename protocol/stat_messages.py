"""The messages that ask for the pool's numbers."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from farpool.protocol.message_base import Reply, Request
from farpool.protocol.quarantine import Quarantined

__all__ = ["ServerStat", "Stat"]


class ServerStat(Reply, frozen=True, kw_only=True):
    """The pool's numbers. Bytes, seconds and counts."""

    server: str
    epoch: int
    pid: int = 0
    """0 to others than administrators."""
    uptime: float
    state: str
    """``serving`` or ``draining``."""
    arena: str = ""
    """The directory, empty to others than administrators; or the device, which clients are told anyway."""
    capacity: int
    allocated: int
    reclaiming: int
    free: int
    slabs: int
    sessions: int
    cpu_seconds: float
    """CPU time of the server process so far, user and system."""
    transports: dict[str, dict[str, Any]]
    """By transport: ``available``, ``reason``, and the counters of its data plane."""
    addresses: list[str]
    quarantined: list[Quarantined] = msgspec.field(default_factory=list[Quarantined])
    """By host; to others than administrators only the sum, of the host ``""``."""


class Stat(Request, frozen=True, kw_only=True):
    """Ask for the pool's numbers."""

    operation: ClassVar[str] = "stat"
    reply: ClassVar[type[Reply]] = ServerStat
