"""One connected queue pair, worked with the calls that users of pyverbs know.

Work requests are built anew for each operation, as its users would write it. A batch is one chain of them: one
doorbell, and one completion, that of its last request, since a reliable connection completes in order.
"""

from __future__ import annotations

import collections
import functools
import mmap
import operator
import select
import time
from typing import Any, Final, NamedTuple

from farpool.native.delegating_region import DONE, GONE, OVERDUE, REFUSED
from farpool.transports.rdma.pyverbs import library
from farpool.transports.rdma.pyverbs.handles import PyverbsError
from farpool.transports.rdma.pyverbs.objects import Memory, Pair

__all__ = ["Lane", "Move"]

enums = library.enums
SGE: Any = library.wr.SGE
SendWR: Any = library.wr.SendWR

READ: Final = enums.IBV_WR_RDMA_READ
WRITE: Final = enums.IBV_WR_RDMA_WRITE
WORD_BYTES: Final = 8
LOOK_SECONDS: Final = 0.1
"""How often a lane that waits looks whether it was closed."""


class Move(NamedTuple):
    """One piece of an operation: some bytes of a slab, and where they are in this process."""

    remote: int
    local: int
    lkey: int
    length: int


class Lane:
    """Borrowed by one operation at a time. *staging* and *room* are registered memory of its own, and its bytes.

    Whoever gives up while work is out must close the lane before the caller's memory is let go.
    """

    def __init__(self, pair: Pair, staging: Memory, room: mmap.mmap, spin: float) -> None:
        self.pair = pair
        self.staging = staging
        self.bytes = memoryview(room)
        self.place: object = None
        """Its place in the pool of lanes."""
        self._word = self.bytes[:WORD_BYTES].cast("Q")
        self._spin = spin

    def move(self, moves: list[Move], rkey: int, deadline: float, *, inward: bool) -> int:
        """Read or write all pieces, as many at once as the queue holds; return how it ended."""
        outcome = DONE
        for start in range(0, len(moves), self.pair.depth):
            outcome = self._run(self._chain(moves[start : start + self.pair.depth], rkey, inward=inward), deadline)
            if outcome != DONE:
                break
        return outcome

    def word(self, code: str, remote: int, rkey: int, expected: int, operand: int, deadline: float) -> tuple[int, int]:
        """Do one operation on a word; its old value comes through the staging memory."""
        piece = SGE(self.staging.address, WORD_BYTES, self.staging.lkey)
        if code in ("load", "store"):
            self._word[0] = operand
            request = SendWR(opcode=READ if code == "load" else WRITE, num_sge=1, sg=[piece])
            request.set_wr_rdma(rkey, remote)
        elif code == "fetch_add":
            request = SendWR(opcode=enums.IBV_WR_ATOMIC_FETCH_AND_ADD, num_sge=1, sg=[piece])
            request.set_wr_atomic(rkey, remote, operand)
        else:
            request = SendWR(opcode=enums.IBV_WR_ATOMIC_CMP_AND_SWP, num_sge=1, sg=[piece])
            request.set_wr_atomic(rkey, remote, expected, operand)
        piece.close()
        outcome = self._run([request], deadline)
        return outcome, 0 if code == "store" else self._word[0]

    def _chain(self, moves: list[Move], rkey: int, *, inward: bool) -> list[Any]:
        """Return the requests of one batch, each linked to the next; the last is signalled."""
        following: Any = None
        requests: list[Any] = []
        for move in reversed(moves):
            flags = 0 if following else enums.IBV_SEND_SIGNALED
            if not inward and move.length <= self.pair.max_inline:
                flags |= enums.IBV_SEND_INLINE
            piece = SGE(move.local, move.length, move.lkey)
            following = SendWR(
                opcode=READ if inward else WRITE, num_sge=1, sg=[piece], send_flags=flags, next_wr=following
            )
            following.set_wr_rdma(rkey, move.remote)
            piece.close()  # the request has its own copy; nobody frees this one otherwise
            requests.append(following)
        requests.reverse()
        return requests

    def _run(self, requests: list[Any], deadline: float) -> int:
        try:
            with self.pair.lock:
                if self.pair.qp is None:
                    return GONE
                self.pair.qp.post_send(requests[0])
            return self._reap(deadline)
        except PyverbsError:
            return GONE
        finally:
            for request in requests:
                request.close()

    def _reap(self, deadline: float) -> int:
        """Wait for the completion of what was posted: poll for a bounded time, then wait for an event."""
        until = min(deadline, time.monotonic() + self._spin)
        while True:
            outcome = self._collect()
            if outcome is not None:
                return outcome
            if time.monotonic() >= until:
                break
        while True:
            outcome = self._collect(ask=True)
            if outcome is not None:
                return outcome
            left = deadline - time.monotonic()
            if left <= 0:
                return OVERDUE
            self._sleep(left)

    def _collect(self, *, ask: bool = False) -> int | None:
        """Take one completion; *ask* for an event of the next one first. None if there is none."""
        with self.pair.lock:
            cq = self.pair.cq
            if cq is None:
                return GONE
            if ask:
                cq.req_notify()
            count, completions = cq.poll(1)
        if not count:
            return None
        status = completions[0].status
        if status == enums.IBV_WC_SUCCESS:
            return DONE
        return REFUSED if status == enums.IBV_WC_REM_ACCESS_ERR else GONE

    def _sleep(self, seconds: float) -> None:
        """Wait for an event of the completion channel; those of earlier waits count too."""
        waiting = select.poll()
        waiting.register(self.pair.fileno(), select.POLLIN)
        if not waiting.poll(min(seconds, LOOK_SECONDS) * 1000):
            return
        with self.pair.lock:
            if self.pair.cq is None:
                return
            take = functools.partial(self.pair.channel.get_cq_event, self.pair.cq)
            acknowledge = functools.partial(self.pair.cq.ack_events, 1)
            # In one go: a Ctrl-C between the two would leave an event that the queue's end waits for, for ever.
            collections.deque(map(operator.call, (take, acknowledge)), maxlen=0)

    def close(self) -> None:
        """Destroy the queue pair and give up the staging memory. The device touches neither afterwards."""
        self.pair.close()
        self.staging.close()
