"""What the server shows of itself to a transport's server half: slabs, sessions, a device, and what it may call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from farpool.native.cipher import Encryptor
    from farpool.native.mapping import Mapping as MemoryMapping
    from farpool.protocol.errors import FarpoolError

__all__ = ["Mode", "ServedDevice", "ServedSession", "ServedSlab", "ServerContext"]

Mode = Literal["r", "rw"]


class ServedSlab(Protocol):
    """A slab as the server shows it to a transport. Its memory outlives every ``publish`` that is not revoked."""

    @property
    def id(self) -> int:
        """Number of the slab, never used twice in one arena."""
        ...

    @property
    def generation(self) -> int:
        """Number of the memory that the slab has now, never used twice in one arena; 0 is no generation.

        A commit gives the slab other memory: what was published of it is revoked before, and published anew after.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Size in bytes that the owner asked for; the mapping may be longer."""
        ...

    @property
    def slot(self) -> int:
        """Index of the slab's word in the arena's generation file."""
        ...

    @property
    def atomics(self) -> str:
        """Whose atomics its words belong to: ``cpu`` or ``rdma``; the other's are not atomic with them."""
        ...

    @property
    def offset(self) -> int:
        """Where its memory begins in what ``open_descriptor`` opens: 0 in a file of its own, else in the device."""
        ...

    def memory(self) -> MemoryMapping:
        """Return the server's own read-write mapping, made on first use and closed when the slab ends."""
        ...

    def open_descriptor(self, mode: Mode) -> int:
        """Return a new descriptor of the slab's file or device, read-only for mode ``"r"``; the caller closes it."""
        ...


@dataclass(frozen=True, slots=True)
class ServedDevice:
    """The device that a server's slabs are extents of, for those who open it by themselves."""

    path: str
    """What the server's host calls it."""
    arena: bytes
    """16 bytes of its superblock that name the arena."""
    incarnation: bytes
    """16 bytes of its superblock that this start of the server has drawn."""


@dataclass(frozen=True, slots=True)
class ServedSession:
    """A session as the server shows it to a transport."""

    id: int
    tenant: str
    secret: bytes
    """32 bytes that only this client knows; a data plane is opened with it."""
    encrypted: bool = False
    """Whether its control connection is; then bytes of its slabs that cross a network must be too."""
    word: int = 0
    """Where in the generation file the word is that holds its number while it lives; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the server gives a transport at its start."""

    loop: asyncio.AbstractEventLoop
    socket_path: str
    """Where the control plane's Unix socket will be; a transport may put sockets of its own beside it."""
    generations_path: str
    """File of the arena with one 8-byte generation word a slot, written by the server alone."""
    generations_nbytes: int
    settings: Mapping[str, Any]
    """The transport's own settings; tcp knows ``listen`` (``HOST:PORT``), ``threads`` and its limits."""
    report: Callable[[str, Mapping[str, Any]], None]
    """Log what an operator should see: ``report("garbage", {"peer": ..., "reason": ...})``. Any thread may call it."""
    session_of: Callable[[int], ServedSession | None]
    """Find a session that may use data planes now."""
    device: ServedDevice | None = None
    """What slabs are extents of; None where each has a file. Its generation words are on the device itself."""
    socket_mode: int = 0o600
    """Permission bits of that socket, and of those beside it."""
    coherence: str = "hardware"
    """``"software"`` where hosts that share the memory have caches that do not see each other."""
    encryptor: Encryptor | None = None
    """What connections are encrypted with; None if the server has no TLS."""
    watched_offset: int = 0
    """Where in the generation file there is a word a slot that tells which word of its slab somebody waits for."""
    several_tenants: Callable[[], bool] = lambda: False
    """Whether the pool has more than one tenant now: then none may take all of what the data plane has."""
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread
    """Do in a thread what would keep the loop for long. The transport is stopped after that has ended."""
    changed: Callable[[int], None] = lambda slab_id: None
    """Say in which slab a word that somebody waits for was stored to. The loop's thread alone calls it."""
    refused: Callable[[str, FarpoolError, Mapping[str, Any]], None] = lambda act, error, about: None
    """Tell the audit log who was refused what: ``refused("write", error, {"peer": ...})``. Any thread may."""
