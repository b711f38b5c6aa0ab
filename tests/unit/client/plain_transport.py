"""A transport in plain Python, whose regions are this process's own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farpool.protocol.errors import FarpoolError, NotMappable, OutOfBounds, ReadOnly, RegionInUse, StaleSlab
from farpool.protocol.messages import Offer
from farpool.transports.contract import Probe, Region, Ticket

if TYPE_CHECKING:
    from typing_extensions import Buffer


class PlainMemory(bytearray):
    """Bytes that keep the region alive that shows them."""

    region: PlainRegion | None = None


class PlainRegion:
    """A region whose memory is this process's own; enough of the contract for what is tried here."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.memory = PlainMemory(ticket.nbytes)
        self.closed = False
        self.follow: Callable[[StaleSlab, float | None], Region] | None = None

    @property
    def nbytes(self) -> int:
        return self.ticket.nbytes

    def _range(self, offset: int, nbytes: int, *, writes: bool = False) -> slice:
        if self.closed:
            raise StaleSlab(f"slab {self.ticket.label} is closed")
        if writes and not self.ticket.writable:
            raise ReadOnly(f"slab {self.ticket.label} was opened for reading")
        if offset < 0 or offset + nbytes > len(self.memory):
            raise OutOfBounds("past the end")
        return slice(offset, offset + nbytes)

    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        with memoryview(buffer).cast("B") as view:
            view[:] = self.memory[self._range(offset, len(view))]
            return len(view)

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        return bytes(self.memory[self._range(offset, nbytes)])

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        data = bytes(buffer)
        self.memory[self._range(offset, len(data), writes=True)] = data
        return len(data)

    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return sum(self.read_into(buffer, offset) for offset, buffer in parts)

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return sum(self.write(buffer, offset) for offset, buffer in parts)

    def load(self, offset: int, timeout: float | None = None) -> int:
        return int.from_bytes(self.read(8, offset), "little")

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        self.write(value.to_bytes(8, "little"), offset)

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        old = self.load(offset)
        self.store(offset, (old + value) % (1 << 64))
        return old

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        old = self.load(offset)
        if old == expected:
            self.store(offset, new)
        return old

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        self._range(offset, nbytes or 0)

    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None:
        self._range(offset, nbytes or 0)

    def view(self, offset: int = 0, nbytes: int | None = None) -> memoryview:
        if self.ticket.label == "unmappable":
            raise NotMappable("plain memory of that name is not shown")
        part = self._range(offset, len(self.memory) - offset if nbytes is None else nbytes)
        self.memory.region = self
        view = memoryview(self.memory)[part]
        return view if self.ticket.writable else view.toreadonly()

    def close(self) -> None:
        if not self.closed:
            try:
                self.memory.append(0)  # refused while a view lives
            except BufferError:
                raise RegionInUse(f"views of slab {self.ticket.label} are alive") from None
            self.closed = True


class AwaitablePlainRegion:
    """The awaitable twin: each operation yields to the loop once."""

    def __init__(self, region: Region) -> None:
        self.region = region

    async def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self.region.read_into(buffer, offset)

    async def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        return self.region.read(nbytes, offset)

    async def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        return self.region.write(buffer, offset)

    async def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self.region.readv(parts)

    async def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        return self.region.writev(parts)

    async def load(self, offset: int, timeout: float | None = None) -> int:
        return self.region.load(offset)

    async def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        self.region.store(offset, value)

    async def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        return self.region.fetch_add(offset, value)

    async def compare_swap(
        self,
        offset: int,
        expected: int,
        new: int,
        timeout: float | None = None,
    ) -> int:
        return self.region.compare_swap(offset, expected, new)

    async def close(self) -> None:
        self.region.close()


@dataclass
class PlainTransport:
    """The client half. Regions are private to their handle: nothing here tests what bytes another handle sees."""

    usable: bool = True
    failures: list[FarpoolError] = field(default_factory=list[FarpoolError])
    closed: bool = False
    tickets: list[Ticket] = field(default_factory=list[Ticket])

    def probe(self, offer: Offer, seconds: float) -> Probe:
        return Probe(self.usable, "" if self.usable else "it was told not to be")

    def attach(self, ticket: Ticket, seconds: float) -> PlainRegion:
        self.tickets.append(ticket)
        if self.failures:
            raise self.failures.pop(0)
        return PlainRegion(ticket)

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitablePlainRegion:
        return AwaitablePlainRegion(region)

    def close(self) -> None:
        self.closed = True
