"""A slab behind an RDMA device, for an event loop: many operations in flight over one queue pair.

Everything runs on the loop's thread, with the GIL; the completion channel's descriptor wakes the loop. Each operation
has a slot of registered memory to itself, so that the device never reaches a caller's buffer.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

import os
from collections import deque

from farpool.native.checks cimport as_addend, as_offset, as_word, raise_misaligned
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.equal_parts cimport EqualParts
from farpool.native.libsocket cimport POLLIN, poll, pollfd
from farpool.native.libverbs cimport (
    IBV_SEND_SIGNALED,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    ibv_ack_cq_events,
    ibv_cq,
    ibv_get_cq_event,
    ibv_poll_cq,
    ibv_post_send,
    ibv_req_notify_cq,
    ibv_send_wr,
    ibv_sge,
    ibv_wc,
)
from farpool.native.operation cimport OP_COMPARE_SWAP, OP_FETCH_ADD, OP_LOAD, OP_STORE
from farpool.native.rdma_flight cimport SLOT, Convoy, Flight, aim
from farpool.native.rdma_region cimport RdmaRegion
from farpool.native.verbs cimport MemoryRegion, QueuePair

from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, ServerLost

SLOT_BYTES = SLOT
cdef enum:
    MOST_IN_SLOT = 64       # parts of one operation: half of what the queue holds, so that two are in flight

_CODES = {"load": OP_LOAD, "store": OP_STORE, "fetch_add": OP_FETCH_ADD, "compare_swap": OP_COMPARE_SWAP}


cdef class RdmaPipeline:
    """One queue pair of an event loop; see the stub for the contract."""

    cdef QueuePair pair
    cdef MemoryRegion staging
    cdef object loop
    cdef list slots                 # that are free
    cdef dict flying                # slot -> Flight
    cdef object waiting             # deque of Flight: no slot, or no place in the queue
    cdef uint32_t posted            # requests that may still be in the queue
    cdef int fd                     # a copy of the channel's: it is not used again while the loop watches it
    cdef object timer
    cdef int64_t timer_at
    cdef readonly bint closed
    cdef object __weakref__

    def __init__(self, QueuePair pair not None, MemoryRegion staging not None, loop):
        self.pair = pair
        self.staging = staging
        self.loop = loop
        self.slots = list(range(staging.nbytes // SLOT))
        self.flying = {}
        self.waiting = deque()
        self.fd = os.dup(pair.channel.fd)
        if ibv_req_notify_cq(pair.cq, 0) != 0:
            raise ServerLost("the device gives no completion events")
        loop.add_reader(self.fd, self.on_event)

    @property
    def incarnation(self):
        """Number of the server's start that the queue pair is connected to."""
        return self.pair.incarnation

    @property
    def pending(self):
        """Operations that have not ended, cancelled ones included."""
        return len(self.flying) + len(self.waiting)

    cdef Flight fly(self, RdmaRegion region, bint writes, double deadline, object future=None):
        cdef Flight flight = Flight.__new__(Flight)
        if self.closed:
            raise ServerLost("the queue pair is closed")
        region.check(0, 0, writes)
        flight.region = region
        flight.inward = not writes
        flight.deadline = to_ns(deadline)
        flight.future = self.loop.create_future() if future is None else future
        return flight

    def move(self, RdmaRegion region not None, parts, bint writes, double deadline):
        """Read or write at most ``SLOT_BYTES`` in all; the future's result is the bytes moved."""
        cdef Flight flight = self.fly(region, writes, deadline)
        flight.hold(parts)
        region.check(0, 0, writes)
        return self.submit(flight)

    def move_parts(self, RdmaRegion region not None, EqualParts parts not None, double deadline):
        """Read or write parts of one size, ``SLOT_BYTES`` at most; the future's result is the bytes moved."""
        cdef Py_ssize_t step = min(<Py_ssize_t> MOST_IN_SLOT, SLOT // parts.part_nbytes), first
        cdef Convoy convoy = Convoy.__new__(Convoy)
        cdef Flight flight = None
        for first in range(0, parts.count, step):
            flight = self.fly(region, not parts.inward, deadline, flight.future if flight is not None else None)
            flight.join(convoy, parts, first, min(step, parts.count - first))
            self.waiting.append(flight)
        return self.send_off(flight)

    def word(self, RdmaRegion region not None, str code not None, offset, length, operand, double deadline):
        """Do ``load``, ``store``, ``fetch_add`` or ``compare_swap``; the future's result is the old value."""
        cdef Flight flight = self.fly(region, code != "load", deadline)
        cdef Py_ssize_t start = as_offset(offset)
        region.check(start, 8, code != "load")
        if start & 7:
            raise_misaligned(start, region.label)
        flight.room(1)
        flight.code = _CODES[code]
        flight.parts[0].offset = start
        flight.parts[0].length = 8
        flight.length = as_word(length)
        flight.operand = as_addend(operand) if flight.code == OP_FETCH_ADD else as_word(operand)
        if flight.code in (OP_FETCH_ADD, OP_COMPARE_SWAP):
            region.check_atomics()
        return self.submit(flight)

    cdef object submit(self, Flight flight):
        self.waiting.append(flight)
        return self.send_off(flight)

    cdef object send_off(self, Flight flight):
        """Post what has come to wait, up to *flight*."""
        self.post_some()
        if not flight.future.done() and (self.timer is None or flight.deadline < self.timer_at):
            self.set_timer(flight.deadline)
        return flight.future

    cdef int post_some(self) except -1:
        """Post what has a slot and a place in the queue, in order."""
        cdef Flight flight
        while self.waiting and not self.closed:
            flight = self.waiting[0]
            if flight.future.done():
                flight.release()
                self.waiting.popleft()
                continue
            if not self.slots or self.posted + flight.count > self.pair.depth:
                if flight.count > self.pair.depth:
                    raise InvalidArgument(f"one operation has at most {self.pair.depth} parts, not {flight.count}")
                return 0
            self.waiting.popleft()
            flight.slot = self.slots.pop()
            self.flying[flight.slot] = flight
            if self.pair.qp == NULL or not self.post(flight):
                self.fail()
        return 0

    cdef bint post(self, Flight flight) except -1:
        """Post one operation; its last request is signalled, and carries the slot."""
        cdef ibv_send_wr *requests = <ibv_send_wr *> calloc(flight.count or 1, sizeof(ibv_send_wr))
        cdef ibv_sge *pieces = <ibv_sge *> calloc(flight.count or 1, sizeof(ibv_sge))
        cdef ibv_send_wr *failed = NULL
        cdef uint64_t place = self.staging.address + <uint64_t> flight.slot * SLOT
        cdef Py_ssize_t i
        try:
            if requests == NULL or pieces == NULL:
                raise MemoryError
            if flight.code == OP_STORE:
                (<uint64_t *> place)[0] = flight.operand
            for i in range(flight.count):
                if not flight.inward and not flight.code:
                    memcpy(<void *> place, flight.bytes_of(i), flight.parts[i].length)
                pieces[i].addr = place
                pieces[i].length = <uint32_t> flight.parts[i].length
                pieces[i].lkey = self.staging.mr.lkey
                requests[i].wr_id = flight.slot
                requests[i].sg_list = &pieces[i]
                requests[i].num_sge = 1
                requests[i].next = &requests[i + 1] if i + 1 < flight.count else NULL
                aim(&requests[i], flight, flight.region.base + flight.parts[i].offset)
                place += flight.parts[i].length
            if flight.count == 0:
                self.land(flight)
                return True
            requests[flight.count - 1].send_flags = IBV_SEND_SIGNALED
            if ibv_post_send(self.pair.qp, requests, &failed) != 0:
                return False
            self.posted += flight.count
            return True
        finally:
            free(requests)
            free(pieces)

    def on_event(self):
        """Finish what has completed; the loop calls it."""
        cdef ibv_cq *cq = NULL
        cdef void *context = NULL
        cdef pollfd item
        if self.closed:
            return
        if self.pair.qp == NULL:
            self.fail()
            return
        item.fd = self.pair.channel.fd
        item.events = POLLIN
        if poll(&item, 1, 0) > 0 and ibv_get_cq_event(self.pair.channel, &cq, &context) == 0:
            ibv_ack_cq_events(cq, 1)
        if ibv_req_notify_cq(self.pair.cq, 0) != 0:
            self.fail()
            return
        self.collect()
        if not self.closed:
            self.post_some()

    cdef int collect(self) except -1:
        cdef ibv_wc completion
        cdef Flight flight
        while not self.closed and ibv_poll_cq(self.pair.cq, 1, &completion) > 0:
            flight = self.flying.get(completion.wr_id)
            if completion.status != IBV_WC_SUCCESS:
                # A refusal ends the connection in order: what was posted later has not been carried out.
                if completion.status == IBV_WC_REM_ACCESS_ERR:
                    if flight is not None:
                        self.refuse(flight)
                    self.fail(False)
                else:
                    self.fail()
                return 0
            if flight is not None:
                self.posted -= flight.count
                self.land(flight)
        return 0

    cdef int land(self, Flight flight) except -1:
        """An operation has ended well: its bytes go to the caller, its slot to the next."""
        cdef char *place = <char *> (self.staging.address + <uint64_t> flight.slot * SLOT)
        cdef Py_ssize_t i
        cdef uint64_t old = (<uint64_t *> place)[0]
        if not flight.future.done():
            if flight.code:
                flight.future.set_result(0 if flight.code == OP_STORE else old)
            else:
                for i in range(flight.count if flight.inward else 0):
                    memcpy(flight.bytes_of(i), place, flight.parts[i].length)
                    place += flight.parts[i].length
                if flight.has_arrived():
                    flight.future.set_result(flight.length)
        flight.release()
        del self.flying[flight.slot]
        self.slots.append(flight.slot)
        return 0

    cdef object refuse(self, Flight flight):
        """The device of the server refused the key: the slab is gone, or was registered anew."""
        if not flight.future.done():
            try:
                flight.region.raise_refused()
            except Exception as error:
                flight.future.set_exception(error)

    cdef object set_timer(self, int64_t at):
        if self.timer is not None:
            self.timer.cancel()
        self.timer_at = at
        self.timer = self.loop.call_later(max(0, at - now_ns()) / 1e9, self.on_timer)

    def on_timer(self):
        """Fail the operations whose deadline has passed; the loop calls it."""
        cdef Flight flight
        cdef int64_t now = now_ns(), earliest = 0
        cdef bint late = False
        self.timer = None
        for item in [*self.flying.values(), *self.waiting]:
            flight = item
            if flight.future.done():
                continue
            if flight.deadline > now:
                earliest = flight.deadline if earliest == 0 or flight.deadline < earliest else earliest
                continue
            late = True
            flight.future.set_exception(DeadlineExceeded(
                f"slab {flight.region.label}: the device did not finish within the deadline; "
                + ("raise timeout=" if flight.inward else "whether the change took effect is unknown")
            ))
        if earliest:
            self.set_timer(earliest)
        elif late:
            self.close()        # nothing moves any more: the next operation connects anew

    cdef object fail(self, bint begun=True):
        """End the connection, and every operation with it; *begun* says that those posted may have taken effect."""
        cdef Flight flight
        if self.closed:
            return
        self.closed = True
        if not self.loop.is_closed():
            self.loop.remove_reader(self.fd)
        os.close(self.fd)
        self.pair.close()       # from here on the device touches no slot
        self.staging.close()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for posted, flights in ((begun, list(self.flying.values())), (False, list(self.waiting))):
            for item in flights:
                flight = item
                flight.release()
                if not flight.future.done():
                    partly = posted or flight.is_partly_there()
                    flight.future.set_exception(ServerLost(
                        f"slab {flight.region.label}: the RDMA connection was lost"
                        + ("; whether the change took effect is unknown" if partly and not flight.inward else ""),
                        begun=partly,
                    ))
        self.flying.clear()
        self.waiting.clear()

    cpdef close(self):
        """Fail what is in flight with ``ServerLost`` and destroy the queue pair. Idempotent."""
        self.fail()
