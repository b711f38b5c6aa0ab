"""The client half: regions that turn each operation into requests."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from farpool.protocol.errors import (
    DeadlineExceeded,
    FarpoolError,
    InvalidArgument,
    NotMappable,
    OutOfBounds,
    ReadOnly,
    ServerLost,
    SlabBusy,
    StaleSlab,
)
from farpool.protocol.messages import Offer
from farpool.transports.contract import AwaitableRegion, Probe, Region, Ticket
from farpool_stream.awaiting import AwaitableStreamRegion
from farpool_stream.buffers import as_word, deadline_after, source_of, target_of
from farpool_stream.line import Line
from farpool_stream.wire import CHUNK, Bytes, Left, Operation, Request, Status

if TYPE_CHECKING:
    from typing_extensions import Buffer

REPEATABLE = {Operation.READ, Operation.LOAD}
"""What may be sent again when its connection ended. Of a write nobody knows whether it was done."""


class StreamRegion:
    """One slab, reached by requests. See ``farpool.transports.contract.Region``."""

    def __init__(self, line: Line, ticket: Ticket) -> None:
        self._line = line
        self._ticket = ticket
        self._lost = line.lost
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Size of the slab in bytes."""
        return self._ticket.nbytes

    def read_into(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Fill *buffer*."""
        return self.readv([(offset, buffer)], timeout)

    def read(self, nbytes: int, offset: int = 0, timeout: float | None = None) -> bytes:
        """Return new bytes."""
        self._check(index(offset), index(nbytes))
        target: Bytes = np.empty(nbytes, np.uint8)
        self.readv([(offset, target)], timeout)
        return target.tobytes()

    def write(self, buffer: Buffer, offset: int = 0, timeout: float | None = None) -> int:
        """Copy *buffer* into the slab."""
        return self.writev([(offset, buffer)], timeout)

    def readv(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Fill many buffers."""
        left = deadline_after(timeout, self._ticket.timeout)
        checked = [(index(offset), target_of(buffer)) for offset, buffer in parts]
        for offset, target in checked:
            self._check(offset, target.nbytes)
        self._check(0, 0)
        for offset, target in checked:
            for start in range(0, target.nbytes, CHUNK):
                self._ask(Operation.READ, offset + start, left, target=target[start : start + CHUNK])
        return sum(target.nbytes for _, target in checked)

    def writev(self, parts: Iterable[tuple[int, Buffer]], timeout: float | None = None) -> int:
        """Write many buffers."""
        left = deadline_after(timeout, self._ticket.timeout)
        checked = [(index(offset), source_of(buffer)) for offset, buffer in parts]
        for offset, payload in checked:
            self._check(offset, payload.nbytes, writing=True)
        self._check(0, 0, writing=True)
        for offset, payload in checked:
            for start in range(0, payload.nbytes, CHUNK):
                self._ask(Operation.WRITE, offset + start, left, payload=payload[start : start + CHUNK])
        return sum(payload.nbytes for _, payload in checked)

    def load(self, offset: int, timeout: float | None = None) -> int:
        """Return a word."""
        return self._word(Operation.LOAD, offset, timeout)

    def store(self, offset: int, value: int, timeout: float | None = None) -> None:
        """Set a word."""
        self._word(Operation.STORE, offset, timeout, as_word(value))

    def fetch_add(self, offset: int, value: int, timeout: float | None = None) -> int:
        """Add to a word; return the old value."""
        return self._word(Operation.FETCH_ADD, offset, timeout, index(value) % (1 << 64))

    def compare_swap(self, offset: int, expected: int, new: int, timeout: float | None = None) -> int:
        """Set a word if it is *expected*; return the old value."""
        return self._word(Operation.COMPARE_SWAP, offset, timeout, as_word(new), as_word(expected))

    def flush(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Do nothing: the server's memory is coherent."""
        self._check(index(offset), self.nbytes - offset if nbytes is None else index(nbytes))

    def invalidate(self, offset: int = 0, nbytes: int | None = None) -> None:
        """Do nothing: the server's memory is coherent."""
        self.flush(offset, nbytes)

    def view(self, offset: int = 0, nbytes: int | None = None) -> NoReturn:
        """Refuse: a stream shows no memory."""
        self.flush(offset, nbytes)
        raise NotMappable("the stream transport cannot show a slab as local memory; read it, or attach it over cxl")

    def close(self) -> None:
        """Let go of the slab."""
        self._closed = True

    def _word(
        self, operation: Operation, offset: int, timeout: float | None, operand: int = 0, expected: int = 0
    ) -> int:
        left = deadline_after(timeout, self._ticket.timeout)
        self._check(index(offset), 8, writing=operation is not Operation.LOAD)
        if offset % 8:
            raise InvalidArgument(f"a word begins at a multiple of 8, not at {offset}", offset=offset)
        return self._ask(operation, offset, left, words=(operand, expected))

    def _check(self, offset: int, nbytes: int, *, writing: bool = False) -> None:
        self._line.check()
        if self._closed:
            raise StaleSlab(f"this handle of slab {self._ticket.label} is closed; open the slab again")
        if writing and not self._ticket.writable:
            raise ReadOnly(f'slab {self._ticket.label} is attached read-only; open it with mode="rw" to write')
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise OutOfBounds(
                f"{nbytes} bytes at {offset} are not within slab {self._ticket.label} of {self.nbytes} bytes"
            )

    def _ask(
        self,
        operation: Operation,
        offset: int,
        left: Left,
        *,
        payload: Bytes | None = None,
        target: Bytes | None = None,
        words: tuple[int, int] = (0, 0),
    ) -> int:
        moved = payload if payload is not None else target
        length = 8 if moved is None else moved.nbytes
        request = Request(operation, self._ticket.slab_id, self._ticket.generation, offset, length, *words)
        while True:
            sent = False
            try:
                with self._line.held(left):
                    self._attach(left)
                    sent = True
                    status, word = self._line.ask(request, payload, target, left)
                break
            except SlabBusy:  # another session has it for itself by now
                raise
            except (TimeoutError, BlockingIOError) as error:
                self._line.check()
                raise DeadlineExceeded(f"{operation.name} on slab {self._ticket.label} did not end in time") from error
            except OSError as error:
                self._line.check()
                if sent and operation in REPEATABLE:
                    continue
                raise ServerLost(f"the stream connection ended ({error}); outcome of a write unknown") from error
        if status == Status.OK:
            return word
        raise self._refusal(status)

    def _refusal(self, status: Status) -> FarpoolError:
        if status == Status.STALE:
            return StaleSlab(f"slab {self._ticket.label} was freed, revoked or has expired; its bytes are gone")
        if status == Status.READ_ONLY:
            return ReadOnly(f"slab {self._ticket.label} is attached read-only")
        return OutOfBounds(f"the server's slab {self._ticket.label} is smaller than {self.nbytes} bytes")

    def _attach(self, left: Left) -> None:
        """See to it that there is a connection, and that this slab was attached after the last one ended."""
        line = self._line
        is_open = line.is_open()
        if self._lost == line.lost and not is_open:
            # The server may have started anew since the ticket was written.
            with suppress(ConnectionError, FileNotFoundError):
                line.connect(self._ticket.params, left)
        if self._lost != line.lost:
            params = self._ticket.renew(left())
            if not is_open:
                line.connect(params, left)
            self._lost = line.lost


class StreamClient:
    """The client half."""

    def __init__(self) -> None:
        self._line = Line()

    def probe(self, offer: Offer, seconds: float) -> Probe:
        """Try to connect."""
        path = str(offer.params.get("path", ""))
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(min(seconds, 1.0))
                peer.connect(path)
        except OSError as error:
            return Probe(usable=False, reason=f"{path!r} does not answer ({error}); it is on the server's host only")
        return Probe(usable=True)

    def attach(self, ticket: Ticket, seconds: float) -> Region:
        """Return a region; it connects with its first operation."""
        del seconds  # nothing is waited for
        self._line.check()
        return StreamRegion(self._line, ticket)

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the region's twin."""
        del ticket
        return AwaitableStreamRegion(region)

    def close(self) -> None:
        """Close the connection."""
        self._line.close()
