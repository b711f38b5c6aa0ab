"""One operation of an event loop's queue pair: its requests, its slot once it has one, and where the bytes go."""

from cpython.buffer cimport PyBuffer_Release
from libc.stdlib cimport calloc, free

from farpool.native.checks cimport as_offset, get_source, get_target
from farpool.native.libverbs cimport (
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    aim_atomic,
    aim_rdma,
)
from farpool.native.operation cimport OP_COMPARE_SWAP, OP_FETCH_ADD

from farpool.protocol.errors import InvalidArgument


cdef class Convoy:
    """Several flights that move the parts of one call, and share its future."""


cdef class Flight:
    """One operation: its requests, its slot once it has one, and where the bytes go."""

    def __dealloc__(self):
        self.release()
        free(self.views)
        free(self.parts)

    cdef void release(self) noexcept:
        cdef Py_ssize_t i
        for i in range(self.held):
            PyBuffer_Release(&self.views[i])
        self.held = 0

    cdef int room(self, Py_ssize_t count) except -1:
        self.count = count
        self.views = <Py_buffer *> calloc(count or 1, sizeof(Py_buffer))
        self.parts = <Part *> calloc(count or 1, sizeof(Part))
        if self.views == NULL or self.parts == NULL:
            raise MemoryError
        return 0

    cdef int hold(self, object parts) except -1:
        """Borrow the buffers and check each range."""
        cdef Py_ssize_t start
        cdef Py_buffer *view
        self.room(len(parts))
        for offset, buffer in parts:
            view = &self.views[self.held]
            if self.inward:
                get_target(buffer, view)
            else:
                get_source(buffer, view)
            self.held += 1
            start = as_offset(offset)
            self.region.check(start, view.len, not self.inward)
            self.parts[self.held - 1].offset = start
            self.parts[self.held - 1].length = view.len
            self.length += view.len
        if self.length > SLOT:
            raise InvalidArgument(f"one operation moves at most {SLOT} bytes, not {self.length}")
        return 0

    cdef int join(self, Convoy convoy, EqualParts parts, Py_ssize_t first, Py_ssize_t count) except -1:
        """Take some parts of one size, which were found to be within the slab, as one of several flights."""
        self.parts = <Part *> calloc(count, sizeof(Part))
        if self.parts == NULL:
            raise MemoryError
        parts.describe(self.parts, first, count)
        self.count = count
        self.length = parts.nbytes
        self.whole = parts.data + first * parts.part_nbytes
        self.convoy = convoy
        convoy.parts = parts
        convoy.left += 1
        return 0

    cdef uint8_t *bytes_of(self, Py_ssize_t i) noexcept:
        """Return where the bytes of a part are."""
        if self.whole != NULL:
            return self.whole + i * self.parts[i].length
        return <uint8_t *> self.views[i].buf

    cdef bint has_arrived(self) noexcept:
        """Note that this flight has landed; tell whether all have that share its future."""
        if self.convoy is None:
            return True
        self.convoy.begun = True
        self.convoy.left -= 1
        return self.convoy.left == 0

    cdef bint is_partly_there(self) noexcept:
        """Whether others of its convoy have landed."""
        return self.convoy is not None and self.convoy.begun


cdef void aim(ibv_send_wr *request, Flight flight, uint64_t remote) noexcept:
    """Say what one request does, and where."""
    if flight.code == OP_FETCH_ADD:
        request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD
        aim_atomic(request, remote, flight.region.rkey, flight.operand, 0)
    elif flight.code == OP_COMPARE_SWAP:
        request.opcode = IBV_WR_ATOMIC_CMP_AND_SWP
        aim_atomic(request, remote, flight.region.rkey, flight.length, flight.operand)
    else:
        request.opcode = IBV_WR_RDMA_READ if flight.inward else IBV_WR_RDMA_WRITE
        aim_rdma(request, remote, flight.region.rkey)
