"""A slab behind an RDMA device: an attempt is one batch of work requests, without the GIL.

Small buffers go through the lane's staging memory, which costs a copy and no registration; large ones are registered
where they are. A write takes effect at the server's memory without its CPU, so that the server cannot say ``stale``:
the device does, by refusing a key that was deregistered, and the control plane tells why.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from farpool.native.checks cimport raise_closed, raise_stale
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.libverbs cimport IBV_WC_REM_ACCESS_ERR
from farpool.native.operation cimport OP_LOAD, OP_READ, OP_READV, STATUS_OK, STATUS_STALE, Part, bytes_of, view_of
from farpool.native.rdma_lane cimport BROKEN, COMPLETE, OVERDUE
from farpool.native.remote_region cimport ANSWERED, LATE, LOST
from farpool.native.verbs cimport MemoryRegion

import errno

from farpool.protocol.errors import ServerLost, TransportUnavailable

# What the kernel says of memory that a device may not write to: a read-only mapping, or a file's.
_NOT_PINNED = (errno.EFAULT, errno.EOPNOTSUPP)

cdef enum:
    STAGED_BYTES = 16384        # buffers up to here are copied; a registration costs more
    MOST_MOVES = 4096           # parts of one operation
    MOST_EQUAL_MOVES = 65536    # and of one size, in one buffer
    IDLE_NS = 20000000          # a lane that rested longer is used only if the control plane is connected


cdef class RdmaPeer(Loans):
    """The queue pairs of one session; see the stub for the contract."""

    def __init__(self, open_lane, connected, register, uint32_t max_message, int limit=4):
        Loans.__init__(self, limit)
        self.open_lane = open_lane
        self.connected = connected
        self.register = register
        self.max_message = max_message

    cdef Lane take(self, int64_t deadline):
        """Borrow a lane. Raises ``ServerLost``, ``DeadlineExceeded``, ``TransportUnavailable``."""
        cdef Lane lane = self.borrow(deadline)
        cdef int64_t now = now_ns()
        if lane is None:
            try:
                lane = self.open_lane((deadline - now) / 1e9)
            except BaseException:
                self.write_off()
                raise
        elif now - lane.used > IDLE_NS and not self.connected():
            # Packets to a server that has gone are answered by nobody: do not wait for them.
            self.discard(lane)
            self.reset(0)
            raise ServerLost("the server has gone")
        lane.used = now
        return lane

    cdef void give(self, Lane lane):
        """Return a lane that has no work out."""
        if self.closed:
            self.discard(lane)
            return
        self.give_back(lane)

    cdef void discard(self, Lane lane):
        """Close a lane that has work out, or is of no more use."""
        lane.close()
        self.write_off()

    def keep(self, Lane lane not None):
        """Take in a lane that was opened outside of an operation."""
        self.opened += 1
        lane.used = now_ns()
        self.give(lane)

    def reset(self, uint64_t incarnation):
        """Give up the idle queue pairs but those to this start of the server: what they led to is gone."""
        cdef Lane lane
        cdef list good = []
        while (lane := self.take_idle()) is not None:
            if lane.pair.incarnation == incarnation:
                good.append(lane)
            else:
                self.discard(lane)
        for lane in good:
            self.give_back(lane)

    def close(self):
        """Close the idle queue pairs, and the others when their operation ends. Idempotent."""
        self.closed = True
        self.reset(0)


cdef class RdmaRegion(RemoteRegion):
    """One attached slab, reached by one-sided operations of the device; see the stub for the contract."""

    def __init__(self, RdmaPeer peer not None, uint64_t base, uint32_t rkey, uint64_t generation, Py_ssize_t nbytes,
                 bint writable, bint atomics, uint64_t incarnation, str label not None, double timeout, renew,
                 on_close):
        self.peer = peer
        self.base = base
        self.rkey = rkey
        self.generation = generation
        self.nbytes = nbytes
        self.writable = writable
        self.atomics = atomics
        self.incarnation = incarnation
        self.domain = "rdma"
        self.label = label
        self.timeout = to_ns(timeout)
        self.most_parts = MOST_MOVES
        self.most_equal_parts = MOST_EQUAL_MOVES
        self.renew = renew
        self.on_close = on_close

    cdef int adopt(self, object params) except -1:
        self.base = params["address"]
        self.rkey = params["rkey"]
        self.incarnation = params["incarnation"]
        return 0

    cdef int raise_refused(self) except -1:
        """Raise what a refused key means before the control plane was asked."""
        return raise_stale(self.label)

    cdef int attempt(self, Operation *operation, int64_t deadline) except -3:
        """Run one batch over a borrowed lane."""
        cdef Lane lane
        cdef int outcome
        lane = self.peer.take(deadline)
        if self.closed:     # meanwhile, as its session had ended: the lane may be another session's
            self.peer.give(lane)
            raise_closed(self.label)
        if lane.pair.incarnation != self.incarnation:
            # Another start of the server may have given our key to another slab. Nothing was sent: attach again.
            self.peer.give(lane)
            raise ServerLost("the server has restarted")
        try:
            outcome = self.run(lane, operation, deadline)
        except BaseException:
            self.peer.discard(lane)
            raise
        operation.status = STATUS_OK
        if outcome == COMPLETE:
            self.peer.give(lane)
            return ANSWERED
        # The queue pair is destroyed before the caller's buffers are let go: nothing lands in them later.
        self.peer.discard(lane)
        if outcome == BROKEN and lane.status == IBV_WC_REM_ACCESS_ERR:
            operation.status = STATUS_STALE
            return ANSWERED
        return LATE if outcome == OVERDUE else LOST

    cdef int run(self, Lane lane, Operation *operation, int64_t deadline) except -3:
        cdef bint inward = operation.code in (OP_READ, OP_READV)
        cdef int outcome
        if operation.code >= OP_LOAD:
            with nogil:
                outcome = lane.word(operation.code, self.base + operation.offset, self.rkey, operation.length,
                                    operation.operand, &operation.detail, deadline)
            return outcome
        if operation.length <= STAGED_BYTES or operation.length <= lane.staging.nbytes and is_scattered(operation):
            return self.run_staged(lane, operation, inward, deadline)
        return self.run_registered(lane, operation, inward, deadline)

    cdef int run_staged(self, Lane lane, Operation *operation, bint inward, int64_t deadline) except -3:
        """Move all parts through the lane's own memory."""
        cdef char *staging = <char *> lane.staging.address
        cdef uint32_t lkey = lane.staging.mr.lkey
        cdef const Part *part = operation.parts
        cdef Py_ssize_t i, used = 0
        cdef int outcome = COMPLETE
        with nogil:
            for i in range(operation.count):
                if not inward:
                    memcpy(staging + used, bytes_of(operation, i), part[i].length)
                outcome = lane.add(inward, <uint64_t> (staging + used), <uint32_t> part[i].length, lkey,
                                   self.base + part[i].offset, self.rkey, deadline)
                if outcome != COMPLETE:
                    return outcome
                used += part[i].length
            outcome = lane.finish(deadline)
            if inward and outcome == COMPLETE:
                used = 0
                for i in range(operation.count):
                    memcpy(bytes_of(operation, i), staging + used, part[i].length)
                    used += part[i].length
        return outcome

    cdef int run_registered(self, Lane lane, Operation *operation, bint inward, int64_t deadline) except -3:
        """Move each part from or to where it is, cut to what one work request can carry."""
        cdef list held = []
        cdef MemoryRegion registered = None
        cdef uint64_t limit = self.peer.max_message, done, pieces = 0
        cdef Py_ssize_t i, count = 0
        cdef const Py_buffer *view
        cdef Move *moves
        cdef int outcome
        for i in range(operation.count):
            pieces += operation.parts[i].length // limit + 1
        moves = <Move *> malloc(pieces * sizeof(Move))
        if moves == NULL:
            raise MemoryError
        try:
            for i in range(operation.count):
                if operation.parts[i].length == 0:
                    continue
                view = view_of(operation, i)
                if registered is None or not covers(registered, view):
                    try:
                        registered = self.peer.register(<object> view.obj, <size_t> view.buf, view.len)
                    except TransportUnavailable as error:
                        if error.details.get("errno") not in _NOT_PINNED:
                            raise
                        return self.run_in_steps(lane, operation, inward, deadline)
                    held.append(registered)
                done = 0
                while done < operation.parts[i].length:
                    moves[count].remote = self.base + operation.parts[i].offset + done
                    moves[count].local = <uint64_t> bytes_of(operation, i) + done
                    moves[count].lkey = registered.mr.lkey
                    moves[count].length = <uint32_t> min(limit, operation.parts[i].length - done)
                    done += moves[count].length
                    count += 1
            with nogil:
                outcome = lane.move(inward, moves, count, self.rkey, deadline)
            return outcome
        finally:
            free(moves)

    cdef int run_in_steps(self, Lane lane, Operation *operation, bint inward, int64_t deadline) except -3:
        """Move parts of any length through the lane's own memory: for memory that the kernel does not pin."""
        cdef char *staging = <char *> lane.staging.address
        cdef uint64_t limit = lane.staging.nbytes, done, step
        cdef char *buffer
        cdef Py_ssize_t i
        cdef int outcome
        with nogil:
            for i in range(operation.count):
                buffer = <char *> bytes_of(operation, i)
                done = 0
                while done < operation.parts[i].length:
                    step = min(limit, operation.parts[i].length - done)
                    if not inward:
                        memcpy(staging, buffer + done, step)
                    outcome = lane.add(inward, <uint64_t> staging, <uint32_t> step, lane.staging.mr.lkey,
                                       self.base + operation.parts[i].offset + done, self.rkey, deadline)
                    if outcome == COMPLETE:
                        outcome = lane.finish(deadline)
                    if outcome != COMPLETE:
                        return outcome
                    if inward:
                        memcpy(buffer + done, staging, step)
                    done += step
        return COMPLETE


cdef bint covers(MemoryRegion registered, const Py_buffer *view) noexcept:
    """Whether a buffer is within memory that was registered for a part before it; both are in use, so it still is."""
    cdef uint64_t start = <uint64_t> view.buf
    return registered.address <= start and start + view.len <= registered.address + registered.nbytes


cdef bint is_scattered(const Operation *operation) noexcept nogil:
    """Whether the parts are many and small, so that a copy each is less than a registration each."""
    return operation.count > 1 and operation.length // operation.count <= STAGED_BYTES
