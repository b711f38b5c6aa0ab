from libc.stdint cimport int64_t


cdef class Loans:
    cdef object latest          # what nobody uses, and was used last: it is the next to be used; None if none is idle
    cdef list idle              # the others that nobody uses, the last one used last
    cdef readonly int opened    # how many there are, lent and idle
    cdef readonly int limit
    cdef readonly bint closed
    cdef object returned        # condition: one came back, or another may be opened

    cdef object borrow(self, int64_t deadline)
    cdef object take_idle(self)
    cdef void give_back(self, object item)
    cdef void write_off(self)
    cdef int tell(self) except -1
