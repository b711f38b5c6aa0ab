from libc.stdint cimport uint8_t, uint64_t

from farpool.native.operation cimport Part


cdef class EqualParts:
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t part_nbytes
    cdef readonly Py_ssize_t nbytes     # of all parts
    cdef uint64_t *offsets              # a copy: what the caller's array holds later changes nothing
    cdef uint8_t *data                  # the bytes, part by part; NULL once released
    cdef Py_buffer view                 # the caller's buffer
    cdef bint held
    cdef bint signed                    # how messages show an offset
    cdef bint inward                    # the buffer is filled

    cdef int check(self, Py_ssize_t limit, str label) except -1
    cdef void describe(self, Part *parts, Py_ssize_t first, Py_ssize_t count) noexcept nogil
    cdef void release(self) noexcept


cdef EqualParts take_parts(object offsets, object nbytes, object buffer, bint inward)
