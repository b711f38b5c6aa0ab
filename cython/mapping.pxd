from libc.stdint cimport uint8_t, uint32_t, uint64_t

from farpool.native.bus_guard cimport Guarded


cdef class Mapping:
    cdef uint8_t *base          # NULL once closed
    cdef size_t length          # bytes mapped: whole pages
    cdef readonly size_t nbytes  # bytes asked for
    cdef readonly bint writable
    cdef Guarded *guarded       # NULL where nobody else can cut the file short
    cdef uint32_t views         # buffers of the buffer protocol that are alive

    cdef uint64_t *word(self, Py_ssize_t offset) except NULL
    cdef void unmap(self) noexcept
