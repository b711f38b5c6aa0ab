from libc.stdint cimport uint8_t, uint32_t, uint64_t

from farpool.native.libverbs cimport ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr


cdef class Device:
    cdef ibv_context *context           # NULL once closed
    cdef readonly str name
    cdef readonly int port
    cdef object children                # weak set: closed before us
    cdef uint64_t born                  # forks when this was made
    cdef object __weakref__

    cdef int check(self) except -1


cdef class ProtectionDomain:
    cdef ibv_pd *pd
    cdef readonly Device device
    cdef object children
    cdef uint64_t born                  # forks when this was made
    cdef object __weakref__


cdef class MemoryRegion:
    cdef ibv_mr *mr
    cdef readonly ProtectionDomain domain
    cdef readonly uint64_t address
    cdef readonly uint64_t nbytes
    cdef object owner                   # keeps the memory alive
    cdef uint64_t born                  # forks when this was made
    cdef object __weakref__


cdef class QueuePair:
    cdef ibv_qp *qp
    cdef ibv_cq *cq
    cdef ibv_comp_channel *channel
    cdef readonly ProtectionDomain domain
    cdef readonly uint32_t psn
    cdef readonly uint32_t depth        # work requests that may be out at once
    cdef readonly uint32_t max_inline   # bytes
    cdef readonly uint32_t reads        # reads and atomics that the device runs at once
    cdef public uint64_t incarnation    # number of the server's start that it is of, or connected to; 0 before
    cdef uint64_t born                  # forks when this was made
    cdef object __weakref__

    cdef int prepare(self) except -1
    cdef int modify(self, ibv_qp_attr *change, int mask, str state) except -1
    cdef void destroy(self) noexcept
    cpdef bint failed(self)
