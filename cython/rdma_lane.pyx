"""One-sided reads, writes and atomics over one connected queue pair, without the GIL.

A batch is one chain of work requests: one doorbell, and one completion, that of its last request, since a reliable
connection completes in order. A lane polls for a bounded time, then waits for an event. Whoever gives up while work
is out must close the lane before the caller's memory is let go: the device could still write to it.
"""

from libc.errno cimport EINTR, errno
from libc.stdlib cimport calloc, free

from cpython.exc cimport PyErr_CheckSignals

from farpool.native.clock cimport now_ns, to_ns
from farpool.native.fork cimport forks
from farpool.native.libsocket cimport POLLIN, poll, pollfd
from farpool.native.libverbs cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    aim_atomic,
    aim_rdma,
    ibv_ack_cq_events,
    ibv_cq,
    ibv_get_cq_event,
    ibv_poll_cq,
    ibv_post_send,
    ibv_req_notify_cq,
    ibv_wc,
)
from farpool.native.operation cimport OP_COMPARE_SWAP, OP_FETCH_ADD, OP_LOAD, OP_STORE

cdef enum:
    POLLS_A_CLOCK = 16      # polls between two looks at the clock
    SPUN_REQUESTS = 16      # of one chain at most, each of which is worth the same polling


cdef class Lane:
    """One connected queue pair and the memory to work it with; see the stub for the contract."""

    def __cinit__(self, QueuePair pair not None, MemoryRegion staging not None, double spin):
        cdef uint32_t i
        self.pair = pair
        self.staging = staging
        self.spin = to_ns(spin)
        self.born = forks
        self.requests = <ibv_send_wr *> calloc(pair.depth, sizeof(ibv_send_wr))
        self.pieces = <ibv_sge *> calloc(pair.depth, sizeof(ibv_sge))
        if self.requests == NULL or self.pieces == NULL:
            raise MemoryError
        for i in range(pair.depth):     # what no operation changes
            self.requests[i].wr_id = i
            self.requests[i].sg_list = &self.pieces[i]
            self.requests[i].num_sge = 1
            self.requests[i].next = &self.requests[i + 1] if i + 1 < pair.depth else NULL

    def __dealloc__(self):
        free(self.requests)
        free(self.pieces)

    cdef int move(self, bint inward, const Move *moves, Py_ssize_t count, uint32_t rkey,
                  int64_t deadline) except -3 nogil:
        """Read or write all pieces, as many at once as the queue holds."""
        cdef Py_ssize_t i
        cdef int outcome
        for i in range(count):
            outcome = self.add(inward, moves[i].local, moves[i].length, moves[i].lkey, moves[i].remote, rkey, deadline)
            if outcome != COMPLETE:
                return outcome
        return self.finish(deadline)

    cdef int add(self, bint inward, uint64_t local, uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey,
                 int64_t deadline) except -3 nogil:
        """Append a read or a write to the chain; if the queue is full, carry out the chain first."""
        cdef int outcome
        cdef ibv_sge *piece
        cdef ibv_send_wr *request
        if self.filled == <int> self.pair.depth:
            outcome = self.finish(deadline)
            if outcome != COMPLETE:
                return outcome
        request, piece = &self.requests[self.filled], &self.pieces[self.filled]
        piece.addr = local
        piece.length = length
        piece.lkey = lkey
        request.opcode = IBV_WR_RDMA_READ if inward else IBV_WR_RDMA_WRITE
        request.send_flags = 0 if inward or length > self.pair.max_inline else IBV_SEND_INLINE
        aim_rdma(request, remote, rkey)
        self.filled += 1
        return COMPLETE

    cdef int finish(self, int64_t deadline) except -3 nogil:
        """Post the chain and wait until it is done; an empty one is."""
        cdef int64_t spin = self.spin * min(self.filled, <int> SPUN_REQUESTS)
        cdef int outcome
        if self.filled == 0:
            return COMPLETE
        outcome = self.post()
        return self.reap(spin, deadline) if outcome == COMPLETE else outcome

    cdef int word(self, uint8_t code, uint64_t remote, uint32_t rkey, uint64_t length, uint64_t operand, uint64_t *old,
                  int64_t deadline) except -3 nogil:
        """Do one operation on a word; its old value comes through the staging memory."""
        cdef uint64_t *local = <uint64_t *> self.staging.address
        cdef ibv_send_wr *request = &self.requests[0]
        cdef int outcome
        self.pieces[0].addr = self.staging.address
        self.pieces[0].length = WORD_BYTES
        self.pieces[0].lkey = self.staging.mr.lkey
        request.send_flags = 0
        if code == OP_FETCH_ADD:
            request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD
            aim_atomic(request, remote, rkey, operand, 0)
        elif code == OP_COMPARE_SWAP:
            request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP
            aim_atomic(request, remote, rkey, length, operand)
        else:
            local[0] = operand
            request.opcode = IBV_WR_RDMA_READ if code == OP_LOAD else IBV_WR_RDMA_WRITE
            aim_rdma(request, remote, rkey)
        self.filled = 1
        outcome = self.finish(deadline)
        old[0] = 0 if code == OP_STORE else local[0]
        return outcome

    cdef int post(self) noexcept nogil:
        """Hand the chain to the device with one doorbell."""
        cdef ibv_send_wr *failed = NULL
        cdef ibv_send_wr *last = &self.requests[self.filled - 1]
        cdef ibv_send_wr *beyond = last.next
        cdef int refused
        self.filled = 0
        if self.pair.qp == NULL:
            return BROKEN
        last.send_flags |= IBV_SEND_SIGNALED
        last.next = NULL
        refused = ibv_post_send(self.pair.qp, self.requests, &failed)
        last.next = beyond
        return COMPLETE if refused == 0 else BROKEN

    cdef int collect(self) noexcept nogil:
        """Take one completion: 1 if there was one, 0 if not, BROKEN if it is an error."""
        cdef ibv_wc completion
        cdef int got = ibv_poll_cq(self.pair.cq, 1, &completion)
        if got < 0:
            return BROKEN
        if got > 0 and completion.status != IBV_WC_SUCCESS:
            self.status = completion.status
            return BROKEN
        return got

    cdef int reap(self, int64_t spin, int64_t deadline) except -3 nogil:
        """Wait for the completion of what was posted; poll for *spin* ns at most."""
        cdef int64_t start = 0, now     # most are done before the clock is worth a look
        cdef int polls = 0, got
        while True:
            got = self.collect()
            if got:
                return COMPLETE if got > 0 else BROKEN
            polls += 1
            if polls % POLLS_A_CLOCK == 0:
                now = now_ns()
                start = start or now
                if now > deadline:
                    return OVERDUE
                if now - start > spin:
                    break
        while True:
            if ibv_req_notify_cq(self.pair.cq, 0) != 0:
                return BROKEN
            got = self.collect()    # it may have come before the request for an event
            if got:
                return COMPLETE if got > 0 else BROKEN
            got = self.sleep(deadline)
            if got != COMPLETE:
                return got
            got = self.collect()
            if got:
                return COMPLETE if got > 0 else BROKEN

    cdef int sleep(self, int64_t deadline) except -3 nogil:
        """Wait for an event of the completion channel; events of earlier waits count too."""
        cdef ibv_cq *cq = NULL
        cdef void *context = NULL
        cdef pollfd item
        cdef int64_t left
        cdef int ready
        item.fd = self.pair.channel.fd
        item.events = POLLIN
        while True:
            left = deadline - now_ns()
            if left <= 0:
                return OVERDUE
            left = left // 1000000 + 1
            ready = poll(&item, 1, <int> left if left < 1000000 else 1000000)
            if ready > 0:
                if ibv_get_cq_event(self.pair.channel, &cq, &context) != 0:
                    return BROKEN
                ibv_ack_cq_events(cq, 1)
                return COMPLETE
            if ready < 0 and errno != EINTR:
                return BROKEN
            if ready < 0:
                with gil:
                    PyErr_CheckSignals()

    cdef void close(self) noexcept:
        """Destroy the queue pair and give up the staging memory. The device touches neither afterwards."""
        if self.born == forks:
            self.pair.close()
            self.staging.close()
