from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from farpool.native.libverbs cimport ibv_send_wr, ibv_sge
from farpool.native.verbs cimport MemoryRegion, QueuePair

cdef enum:
    WORD_BYTES = 8

# How the work that was posted has ended.
cdef enum LaneState:
    COMPLETE = 0
    BROKEN = -1             # the queue pair is in error: nothing can be posted any more
    OVERDUE = -2            # the deadline passed with work still out


cdef struct Move:           # one piece of an operation: some bytes of a slab, and where they are in this process
    uint64_t remote         # address, as the region's key has it
    uint64_t local
    uint32_t lkey
    uint32_t length


cdef class Lane:
    cdef readonly QueuePair pair
    cdef readonly MemoryRegion staging  # registered memory of our own, for buffers that are not worth registering
    cdef ibv_send_wr *requests
    cdef ibv_sge *pieces
    cdef int64_t spin                   # ns to poll for each request before we wait for an event
    cdef readonly int status            # of the completion that broke the lane
    cdef int filled                     # requests that are written and not yet posted
    cdef int64_t used                   # when an operation last took it, ns
    cdef uint64_t born                  # forks when it was made

    cdef int move(self, bint inward, const Move *moves, Py_ssize_t count, uint32_t rkey,
                  int64_t deadline) except -3 nogil
    cdef int add(self, bint inward, uint64_t local, uint32_t length, uint32_t lkey, uint64_t remote, uint32_t rkey,
                 int64_t deadline) except -3 nogil
    cdef int finish(self, int64_t deadline) except -3 nogil
    cdef int word(self, uint8_t code, uint64_t remote, uint32_t rkey, uint64_t length, uint64_t operand, uint64_t *old,
                  int64_t deadline) except -3 nogil
    cdef int post(self) noexcept nogil
    cdef int reap(self, int64_t spin, int64_t deadline) except -3 nogil
    cdef int collect(self) noexcept nogil
    cdef int sleep(self, int64_t deadline) except -3 nogil
    cdef void close(self) noexcept
