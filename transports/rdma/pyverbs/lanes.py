"""A session's lanes, and the regions over them."""

from __future__ import annotations

import errno
import mmap
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from weakref import WeakSet

from farpool.native.checks import buffer_extent
from farpool.native.delegating_region import DONE, DelegatingRegion
from farpool.native.fork import fork_count
from farpool.protocol.errors import DeadlineExceeded, ServerLost, StaleSlab, TransportUnavailable
from farpool.transports.contract import AwaitableRegion, Region, Ticket
from farpool.transports.rdma.binding import Connected, OpenPair
from farpool.transports.rdma.pyverbs.awaitable import AwaitablePyverbsRegion
from farpool.transports.rdma.pyverbs.lane import Lane, Move
from farpool.transports.rdma.pyverbs.objects import Domain, Pair
from farpool.transports.rdma.registrations import Registrations
from farpool.transports.threads import MOST_THREADS

__all__ = ["LanePool", "PyverbsLanes", "PyverbsRegion"]

STAGING_BYTES: Final = 256 << 10
STAGED_BYTES: Final = 16 << 10
"""Buffers up to here are copied; a registration costs more."""
MOST_INLINE: Final = 220
MOST_PARTS: Final = 4096
MOST_LANES: Final = 4
LOOK_SECONDS: Final = 0.05

NOT_PINNED: Final = (errno.EFAULT, errno.EOPNOTSUPP)
"""What the kernel says of memory that a device may not write to: a read-only mapping, or a file's."""

Part = tuple[int, memoryview, object]


class _Place:
    """Room for one lane. Who holds it has the room; an interrupt that loses it gives it back."""


class LanePool:
    """The lanes of one session: opened when needed, each used by one operation at a time. Thread-safe.

    Ctrl-C may end an operation between any two of its steps, so that nothing is counted: a place that nobody holds
    any more is free, and those who wait for one look again.
    """

    def __init__(self, open_lane: Callable[[float], Lane], connected: Connected = lambda: True) -> None:
        self._open_lane = open_lane
        self._connected = connected
        self._idle: list[Lane] = []
        self._places: WeakSet[_Place] = WeakSet()
        self._returned = threading.Condition()
        self._closed = False
        self._born = fork_count()

    def take(self, deadline: float) -> Lane:
        """Borrow a lane. Raises ``ServerLost``, ``DeadlineExceeded``, ``TransportUnavailable``."""
        found = self._wait(deadline)
        if isinstance(found, _Place):
            lane = self._open_lane(max(0.0, deadline - time.monotonic()))
            lane.place = found
            return lane
        if not self._connected():
            # Packets to a server that has gone are answered by nobody: do not wait for them.
            self.discard(found)
            self.reset(0)
            raise ServerLost("the server has gone")
        return found

    def _wait(self, deadline: float) -> Lane | _Place:
        """Return an idle lane, or the place for another one."""
        with self._returned:
            while True:
                if self._closed:
                    raise StaleSlab("the pool is closed; connect again")
                if self._idle:
                    return self._idle.pop()
                if len(self._places) < MOST_LANES:
                    place = _Place()
                    self._places.add(place)
                    return place
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(
                        f"all {MOST_LANES} queue pairs stayed busy until the deadline; raise timeout="
                    )
                self._returned.wait(min(left, LOOK_SECONDS))

    def give(self, lane: Lane) -> None:
        """Return a lane that has no work out."""
        with self._returned:
            if not self._closed:
                self._idle.append(lane)
                self._returned.notify()
                return
        self.discard(lane)

    def discard(self, lane: Lane) -> None:
        """Close a lane that has work out, or is of no more use."""
        lane.close()
        lane.place = None

    def keep(self, open_within: float) -> None:
        """Open one lane, and keep it for the first operation."""
        self.give(self.take(time.monotonic() + open_within))

    def reset(self, incarnation: int) -> None:
        """Give up the idle lanes but those to this start of the server: what they led to is gone."""
        if self._born != fork_count():
            return  # a child owns none of them, and the lock may have been held
        with self._returned:
            old = [lane for lane in self._idle if lane.pair.incarnation != incarnation]
            self._idle = [lane for lane in self._idle if lane.pair.incarnation == incarnation]
        for lane in old:
            self.discard(lane)

    def close(self) -> None:
        """Close the idle lanes, and the others when their operation ends. Idempotent."""
        self._closed = True
        self.reset(0)


class PyverbsRegion(DelegatingRegion):
    """One attached slab, reached by one-sided operations through pyverbs."""

    def __init__(
        self,
        pool: LanePool,
        registrations: Registrations,
        max_message: int,
        ticket: Ticket,
        renew: Callable[[float], Mapping[str, Any]],
    ) -> None:
        super().__init__(
            ticket.params,
            generation=ticket.generation,
            nbytes=ticket.nbytes,
            writable=ticket.writable,
            atomics=ticket.params["atomics"],
            domain="rdma",
            label=ticket.label,
            timeout=ticket.timeout,
            most_parts=MOST_PARTS,
            renew=renew,
        )
        self._pool = pool
        self._registrations = registrations
        self._max_message = max_message

    def execute(
        self, code: str, offset: int, length: int, operand: int, parts: list[Part], deadline: float
    ) -> tuple[int, int]:
        """Run one batch over a borrowed lane."""
        lane = self._pool.take(deadline)
        try:
            self.check_range(0, 0)  # closed meanwhile, as its session had ended, the lane may be another session's
        except BaseException:
            self._pool.give(lane)
            raise
        if lane.pair.incarnation != self.params["incarnation"]:
            # Another start of the server may have given our key to another slab. Nothing was sent: attach again.
            self._pool.give(lane)
            raise ServerLost("the server has restarted")
        try:
            base, rkey = self.params["address"], self.params["rkey"]
            if parts:
                outcome, old = self._move(lane, length, parts, deadline, inward=code == "read"), 0
            elif code in ("read", "write"):
                outcome, old = DONE, 0  # no parts, no work
            else:
                outcome, old = lane.word(code, base + offset, rkey, length, operand, deadline)
        except BaseException:
            # The queue pair is destroyed before the caller's buffers are let go: nothing lands in them later.
            self._pool.discard(lane)
            raise
        if outcome == DONE:
            self._pool.give(lane)
        else:
            self._pool.discard(lane)
        return outcome, old

    def _move(self, lane: Lane, nbytes: int, parts: list[Part], deadline: float, *, inward: bool) -> int:
        scattered = len(parts) > 1 and nbytes // len(parts) <= STAGED_BYTES
        if nbytes <= STAGED_BYTES or (scattered and nbytes <= STAGING_BYTES):
            return self._move_staged(lane, parts, deadline, inward=inward)
        return self._move_registered(lane, parts, deadline, inward=inward)

    def _move_staged(self, lane: Lane, parts: list[Part], deadline: float, *, inward: bool) -> int:
        """Move all parts through the lane's own memory."""
        base: int = self.params["address"]
        moves: list[Move] = []
        places: list[tuple[memoryview, memoryview]] = []
        used = 0
        for offset, view, _ in parts:
            if not view.nbytes:
                continue
            place = lane.bytes[used : used + view.nbytes]
            if not inward:
                place[:] = view
            moves.append(Move(base + offset, lane.staging.address + used, lane.staging.lkey, view.nbytes))
            places.append((view, place))
            used += view.nbytes
        outcome = lane.move(moves, self.params["rkey"], deadline, inward=inward)
        if inward and outcome == DONE:
            for view, place in places:
                view[:] = place
        return outcome

    def _move_registered(self, lane: Lane, parts: list[Part], deadline: float, *, inward: bool) -> int:
        """Move each part from or to where it is, cut to what one work request can carry."""
        base: int = self.params["address"]
        held: list[object] = []
        moves: list[Move] = []
        for offset, view, owner in parts:
            address, nbytes = buffer_extent(view)
            if not nbytes:
                continue
            try:
                memory = self._registrations(owner, address, nbytes)
            except TransportUnavailable as error:
                if error.details.get("errno") not in NOT_PINNED:
                    raise
                return self._move_in_steps(lane, parts, deadline, inward=inward)
            held.append(memory)
            for start in range(0, nbytes, self._max_message):
                length = min(self._max_message, nbytes - start)
                moves.append(Move(base + offset + start, address + start, memory.lkey, length))
        return lane.move(moves, self.params["rkey"], deadline, inward=inward)

    def _move_in_steps(self, lane: Lane, parts: list[Part], deadline: float, *, inward: bool) -> int:
        """Move parts of any length through the lane's own memory: for memory that the kernel does not pin."""
        for offset, view, _ in parts:
            for start in range(0, view.nbytes, STAGING_BYTES):
                piece = view[start : start + STAGING_BYTES]
                outcome = self._move_staged(lane, [(offset + start, piece, None)], deadline, inward=inward)
                if outcome != DONE:
                    return outcome
        return DONE


class PyverbsLanes:
    """A session's connected queue pairs. Thread-safe: each operation borrows one."""

    def __init__(
        self,
        domain: Domain,
        connect: OpenPair,
        connected: Connected,
        *,
        access: int,
        max_message: int,
        depth: int,
        spin: float,
    ) -> None:
        self._domain = domain
        self._connect = connect
        self._access = access
        self._max_message = max_message
        self._depth = depth
        self._spin = spin
        self._registrations = Registrations(domain, access)
        self._pool = LanePool(self._open, connected)
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="farpool-rdma")

    def _open(self, seconds: float) -> Lane:
        pair = Pair(self._domain, depth=self._depth, max_inline=MOST_INLINE)
        try:
            room = mmap.mmap(-1, STAGING_BYTES)
            staging = self._domain.register(room, *buffer_extent(room), self._access)
            self._connect(pair, seconds)
        except BaseException:
            pair.close()
            raise
        return Lane(pair, staging, room, self._spin)

    def ping(self, seconds: float) -> None:
        """Connect one lane, and keep it for the first operation."""
        self._pool.keep(seconds)

    def region(self, ticket: Ticket, renew: Callable[[float], Mapping[str, Any]]) -> Region:
        """Return a region over these lanes."""
        return PyverbsRegion(self._pool, self._registrations, self._max_message, ticket, renew)

    def awaitable(self, region: Region, ticket: Ticket) -> AwaitableRegion:
        """Return the twin of *region*."""
        assert isinstance(region, PyverbsRegion)
        return AwaitablePyverbsRegion(region, ticket.timeout, self._threads)

    def reset(self, incarnation: int) -> None:
        """Give up the idle queue pairs to other starts of the server: what they led to is gone."""
        self._pool.reset(incarnation)

    def close(self) -> None:
        """Close the queue pairs, and drop what was registered."""
        self._pool.close()
        self._threads.shutdown(wait=False)
        self._registrations.clear()
