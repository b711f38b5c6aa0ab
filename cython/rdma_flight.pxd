from libc.stdint cimport int64_t, uint8_t, uint64_t

from farpool.native.equal_parts cimport EqualParts
from farpool.native.libverbs cimport ibv_send_wr
from farpool.native.operation cimport Part
from farpool.native.rdma_region cimport RdmaRegion

cdef enum:
    SLOT = 65536                    # bytes of registered memory that one operation works on


cdef class Convoy:
    cdef EqualParts parts
    cdef Py_ssize_t left            # flights that have not landed
    cdef bint begun                 # one has


cdef class Flight:
    cdef RdmaRegion region
    cdef object future
    cdef int64_t deadline
    cdef bint inward
    cdef uint8_t code               # of a word; 0 for bytes
    cdef uint64_t length            # what the future's result is; of a word, what it is expected to be
    cdef uint64_t operand
    cdef Py_buffer *views           # held until it has ended, or nobody waits any more
    cdef Part *parts
    cdef Py_ssize_t count
    cdef Py_ssize_t held
    cdef int slot
    cdef Convoy convoy              # the flights that share its future, or None
    cdef uint8_t *whole             # where the bytes of its parts are then

    cdef void release(self) noexcept
    cdef int room(self, Py_ssize_t count) except -1
    cdef int hold(self, object parts) except -1
    cdef int join(self, Convoy convoy, EqualParts parts, Py_ssize_t first, Py_ssize_t count) except -1
    cdef uint8_t *bytes_of(self, Py_ssize_t i) noexcept
    cdef bint has_arrived(self) noexcept
    cdef bint is_partly_there(self) noexcept


cdef void aim(ibv_send_wr *request, Flight flight, uint64_t remote) noexcept
