from libc.stdint cimport uint8_t

from farpool.native.mapping cimport Mapping


cdef class LineModel:
    cdef uint8_t *cache         # what this host sees: our private copy of every line; NULL once closed
    cdef uint8_t *clean         # what each line held when it was last fetched or written back
    cdef size_t length
    cdef bint forgets_flush     # a fault: nothing is ever written back
    cdef bint forgets_drop      # a fault: nothing is ever fetched anew
    cdef Mapping memory         # what the hosts share

    cdef void write_back(self, size_t offset, size_t nbytes) noexcept nogil
    cdef void drop(self, size_t offset, size_t nbytes) noexcept nogil
    cdef void fetch(self, size_t offset, size_t nbytes) noexcept nogil
