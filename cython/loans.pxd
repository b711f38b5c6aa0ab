from libc.stdint cimport int64_t


cdef class Loans:
    cdef list idle              # what nobody uses; the last one used is the first to be used again
    cdef readonly int opened    # how many there are, lent and idle
    cdef readonly int limit
    cdef readonly bint closed
    cdef object returned        # condition: one came back, or another may be opened

    cdef object borrow(self, int64_t deadline)
    cdef void give_back(self, object item)
    cdef void write_off(self)
    cdef int tell(self) except -1
