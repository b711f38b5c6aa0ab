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


cdef class Lane:
    """One connected queue pair and the memory to work it with; see the stub for the contract."""

    def __cinit__(self, QueuePair pair not None, MemoryRegion staging not None, double spin):
        self.pair = pair
        self.staging = staging
        self.spin = to_ns(spin)
        self.born = forks
        self.requests = <ibv_send_wr *> calloc(pair.depth, sizeof(ibv_send_wr))
        self.pieces = <ibv_sge *> calloc(pair.depth, sizeof(ibv_sge))
        if self.requests == NULL or self.pieces == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.requests)
        free(self.pieces)

    cdef int move(self, bint inward, const Move *moves, Py_ssize_t count, uint32_t rkey,
                  int64_t deadline) except -3 nogil:
        """Read or write all pieces, as many at once as the queue holds."""
        cdef Py_ssize_t start = 0
        cdef int i, some, outcome = COMPLETE
        cdef ibv_send_wr *request
        while start < count and outcome == COMPLETE:
            some = <int> (count - start) if count - start < self.pair.depth else <int> self.pair.depth
            for i in range(some):
                request = &self.requests[i]
                self.pieces[i].addr = moves[start + i].local
                self.pieces[i].length = moves[start + i].length
                self.pieces[i].lkey = moves[start + i].lkey
                request.opcode = IBV_WR_RDMA_READ if inward else IBV_WR_RDMA_WRITE
                request.send_flags = 0
                if not inward and moves[start + i].length <= self.pair.max_inline:
                    request.send_flags = IBV_SEND_INLINE
                aim_rdma(request, moves[start + i].remote, rkey)
            outcome = self.post(some)
            if outcome == COMPLETE:
                outcome = self.reap(deadline)
            start += some
        return outcome

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
        outcome = self.post(1)
        if outcome == COMPLETE:
            outcome = self.reap(deadline)
        old[0] = 0 if code == OP_STORE else local[0]
        return outcome

    cdef int post(self, int count) noexcept nogil:
        """Hand the first *count* requests to the device with one doorbell."""
        cdef ibv_send_wr *failed = NULL
        cdef int i
        if self.pair.qp == NULL:
            return BROKEN
        for i in range(count):
            self.requests[i].wr_id = i
            self.requests[i].sg_list = &self.pieces[i]
            self.requests[i].num_sge = 1
            self.requests[i].next = &self.requests[i + 1] if i + 1 < count else NULL
        self.requests[count - 1].send_flags |= IBV_SEND_SIGNALED
        return COMPLETE if ibv_post_send(self.pair.qp, self.requests, &failed) == 0 else BROKEN

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

    cdef int reap(self, int64_t deadline) except -3 nogil:
        """Wait for the completion of what was posted."""
        cdef int64_t start = now_ns(), now = start
        cdef int polls = 0, got
        while True:
            got = self.collect()
            if got:
                return COMPLETE if got > 0 else BROKEN
            polls += 1
            if polls % POLLS_A_CLOCK == 0:
                now = now_ns()
                if now > deadline:
                    return OVERDUE
                if now - start > self.spin:
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
