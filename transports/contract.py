"""What a transport must offer: a server half, a client half, and the regions that the client half makes.

A transport is a :class:`Transport` found through the entry-point group ``farpool.transports``; another package can
add one without a change here. ``tests/conformance`` is the suite that each must pass. The rules that every
transport keeps stand in ``docs/design.md`` ("The transport contract").

Nothing here does I/O, and importing this module loads no transport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from farpool.protocol.errors import StaleSlab, TransportUnavailable
from farpool.transports.served import Mode, ServedDevice, ServedSession, ServedSlab, ServerContext

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from farpool.native.tls import TlsClient
    from farpool.protocol.messages import Offer

__all__ = [
    "AwaitableGathering",
    "AwaitableRegion",
    "ClientContext",
    "ClientTransport",
    "Following",
    "Gathering",
    "Mode",
    "Probe",
    "Region",
    "ServedDevice",
    "ServedSession",
    "ServedSlab",
    "ServerContext",
    "ServerTransport",
    "Ticket",
    "Transport",
]

# The server half ------------------------------------------------------------------------------------------------


class ServerTransport(Protocol):
    """The server half. All calls come from the event loop's thread."""

    async def start(self, context: ServerContext) -> None:
        """Get ready and listen; raise ``TransportUnavailable`` with a reason if it cannot."""
        ...

    async def stop(self) -> None:
        """Close everything that ``start`` and later calls made; may be called twice."""
        ...

    def offer(self) -> Mapping[str, Any]:
        """Return what the client half's ``probe`` needs to know: addresses and limits."""
        ...

    def negotiate(self, session: ServedSession, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer what the session's client half has sent with ``ClientContext.negotiate``.

        A transport whose two halves need not agree on anything raises ``ProtocolError``.
        """
        ...

    def publish(self, slab: ServedSlab, session: ServedSession, mode: Mode) -> Mapping[str, Any]:
        """Let *session* reach *slab*, and return the parameters that its client half attaches with.

        Publishing again replaces the earlier grant of the same session. The map travels as msgpack.
        """
        ...

    def withdraw(self, slab: ServedSlab, session_id: int) -> None:
        """Take the slab from one session; unknown pairs are ignored."""
        ...

    def revoke(self, slab: ServedSlab) -> None:
        """Take the slab from every session, and return only when no operation on its memory is in flight."""
        ...

    def end_session(self, session_id: int) -> None:
        """Close what the session has open on this data plane; its slabs were withdrawn already."""
        ...

    # ``prepare(slab, session, mode)`` may be there, too: it returns what to await before a large slab is published, or
    # None where nothing would keep the loop for long. ``publish`` follows at once, or ``revoke`` or ``withdraw``.
    #
    # So may ``watch(slab, mark)``: stores to the word at offset ``mark - 1`` (to any word if all bits are
    # set, to none if it is 0) have somebody who waits for them.

    def holders_may_map(self) -> bool:
        """Tell whether clients reach the memory itself, so that a freed slab's pages wait until they let go."""
        ...

    def counters(self) -> Mapping[str, int]:
        """Return the data plane's counters since the start: operations and bytes by kind, connections."""
        ...


# The client half ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """Whether a transport is usable from here; if not, ``reason`` is a sentence that a user can act on."""

    usable: bool
    reason: str = ""


def _nobody_answers(params: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
    raise TransportUnavailable("this client half has no session to negotiate over")


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What a client half is made with."""

    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the user's URL said after ``?``."""
    negotiate: Callable[[Mapping[str, Any], float], Mapping[str, Any]] = _nobody_answers
    """``negotiate(params, seconds)`` sends *params* to the server half over the control plane; returns its answer."""
    connected: Callable[[], bool] = lambda: True
    """Whether the control connection is up: one system call. Who cannot see otherwise that the server has gone asks."""
    tls: TlsClient | None = None
    """What the control connection is encrypted with, and data connections must be; None in clear."""


@dataclass(slots=True)
class Ticket:
    """All that a client half needs to make a region of one attached slab."""

    nbytes: int
    slab_id: int
    generation: int
    writable: bool
    params: Mapping[str, Any]
    """What ``publish`` has returned, and as ``epoch`` the count of the server's start in which it holds."""
    renew: Callable[[float], Mapping[str, Any]]
    """``renew(seconds)`` attaches again, reconnecting if it must; returns new ``params``, or raises why it cannot."""
    timeout: float = 10.0
    """Default deadline of an operation in seconds."""
    atomics: str = "cpu"
    """Whose atomics the slab's words belong to: ``cpu`` or ``rdma``; others raise ``WrongAtomicDomain``."""
    label: str = ""
    """How messages name the slab: its name, or its id."""


class Region(Protocol):
    """One attached slab as one transport reaches it. Thread-safe.

    Offsets and lengths are bytes within the slab. ``timeout`` is seconds; None is the ticket's, and what is no number
    over 0 raises ``InvalidArgument``, even where nobody is waited for. Every method raises ``StaleSlab`` if the slab
    was freed, revoked or has expired (or the region is closed), ``ServerLost`` and ``DeadlineExceeded``; ranges past
    the end raise ``OutOfBounds``, with no byte moved; writes and atomics on a read-only grant raise ``ReadOnly``.
    Buffers are C-contiguous, else ``ValueError``, and writable for ``read_into``, else ``TypeError``.
    """

    @property
    def nbytes(self) -> int:
        """Size of the slab in bytes."""
        ...

    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer* from the slab and return the bytes read."""
        ...

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes from the slab."""
        ...

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab and return the bytes written."""
        ...

    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers in one batch; every range is checked before a byte moves. Return the bytes read."""
        ...

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers in one batch; every range is checked before a byte moves. Return the bytes written."""
        ...

    def load(self, offset: int, timeout: float | None = None) -> int:
        """Return the aligned unsigned 8-byte little-endian word at *offset*."""
        ...

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set the aligned word at *offset*; other readers see the old or the new value, never a mix."""
        ...

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add *value* (modulo 2**64) to the aligned word at *offset* atomically; return the old value."""
        ...

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set the aligned word at *offset* to *new* if it is *expected*, atomically; return the old value."""
        ...

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Make our stores visible to other hosts; nothing to do where the memory is coherent."""
        ...

    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Make other hosts' stores visible to our loads; nothing to do where the memory is coherent."""
        ...

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        """Return the slab's own memory, read-only on a read-only grant; ``NotMappable`` but on cxl.

        The view keeps the region alive; ``retire()``, which such a region has too, leaves it to its views alone.
        """
        ...

    def close(self) -> None:
        """Let go of the slab; ``RegionInUse`` while views live. Idempotent; later operations raise ``StaleSlab``."""
        ...


class Following(Protocol):
    """A region that can be told what to do when its slab's memory was replaced, by a commit or a move.

    Between one that cannot and its callers the client puts a few lines of Python that do the same.
    """

    follow: Callable[[StaleSlab, float | None], Region] | None
    """Called with the ``StaleSlab`` that an operation is about to raise, a write's unless a byte of it may have been
    stored (``details["begun"]``), and the seconds that the operation has left, None for the pool's: returns the region
    that does the whole operation instead, by that deadline, or raises."""


class Gathering(Protocol):
    """A region that moves many parts of one size without a Python object for each; one that cannot is asked for
    ``readv`` and ``writev`` instead (:mod:`farpool.transports.gathering`).

    *offsets* is a C-contiguous array of integers of 8 bytes; part i goes to or from the *nbytes* at ``i * nbytes`` of
    the buffer, which has the bytes of all parts and no more. Every range is checked before a byte moves, and
    ``OutOfBounds`` names the part (``details["part"]``).
    """

    def gather(self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None) -> int:
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        ...

    def scatter(self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None) -> int:
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        ...


class AwaitableGathering(Protocol):
    """The awaitable twin of such a region."""

    async def gather(  # noqa: D102
        self, offsets: Buffer, nbytes: int, out: Buffer, timeout: float | None = None
    ) -> int: ...
    async def scatter(  # noqa: D102
        self, offsets: Buffer, nbytes: int, source: Buffer, timeout: float | None = None
    ) -> int: ...


class AwaitableRegion(Protocol):
    """The awaitable twin of a region, bound to the running loop: same names, arguments and errors.

    A cancelled operation leaves the connection usable, and its buffer is not touched after the cancellation.
    """

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...  # noqa: D102
    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes: ...  # noqa: D102
    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int: ...  # noqa: D102
    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...  # noqa: D102
    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int: ...  # noqa: D102
    async def load(self, offset: int, timeout: float | None = None) -> int: ...  # noqa: D102
    async def store(self, offset: int, value: int, timeout: float | None = None) -> None: ...  # noqa: D102
    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int: ...  # noqa: D102
    async def compare_swap(  # noqa: D102
        self, offset: int, expected: int, new: int, timeout: float | None = None
    ) -> int: ...
    async def close(self) -> None: ...  # noqa: D102


class ClientTransport(Protocol):
    """The client half: one for a session. Thread-safe."""

    def probe(self, offer: Offer, seconds: float) -> Probe:
        """Tell, within *seconds*, whether this transport works from here. May open and close a connection.

        Never raises.
        """
        ...

    def attach(self, ticket: Ticket, seconds: float) -> Region:
        """Return a region for the ticket's slab, within *seconds*.

        Raises ``TransportUnavailable``, ``ServerLost`` or ``DeadlineExceeded``.
        """
        ...

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the region's twin for the running event loop."""
        ...

    def close(self) -> None:
        """Close the session's data connections. Regions that are still open raise ``StaleSlab`` from then on."""
        ...


# The registry's entry -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transport:
    """What the entry point names: a transport's name, its rank and how to make its halves.

    The factories import what they need when they are called, so that naming a transport loads nothing.
    """

    name: str
    rank: int
    """``transport="auto"`` tries low ranks first; cxl is 10, rdma 20, tcp 30."""
    server: Callable[[], ServerTransport]
    client: Callable[[ClientContext], ClientTransport]
    summary: str = ""
