from libc.stdint cimport int64_t, uint32_t, uint64_t

from farpool.native.loans cimport Loans
from farpool.native.operation cimport Operation
from farpool.native.rdma_lane cimport Lane, Move
from farpool.native.remote_region cimport RemoteRegion


cdef class RdmaPeer(Loans):
    cdef object open_lane               # seconds -> Lane
    cdef object connected               # -> whether the control plane is up
    cdef object register                # object, address, nbytes -> MemoryRegion of the caller's buffer
    cdef readonly uint32_t max_message  # bytes of one work request

    cdef Lane take(self, int64_t deadline)
    cdef void give(self, Lane lane)
    cdef void discard(self, Lane lane)


cdef class RdmaRegion(RemoteRegion):
    cdef RdmaPeer peer
    cdef uint64_t base                  # the slab's address, as the key has it
    cdef uint32_t rkey
    cdef readonly uint64_t incarnation           # of the server's start that has given out the key

    cdef int raise_refused(self) except -1
    cdef int run(self, Lane lane, Operation *operation, int64_t deadline) except -3
    cdef int run_staged(self, Lane lane, Operation *operation, bint inward, int64_t deadline) except -3
    cdef int run_in_steps(self, Lane lane, Operation *operation, bint inward, int64_t deadline) except -3
    cdef int run_registered(self, Lane lane, Operation *operation, bint inward, int64_t deadline) except -3
