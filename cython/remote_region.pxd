from libc.stdint cimport int64_t, uint8_t, uint64_t

from farpool.native.equal_parts cimport EqualParts
from farpool.native.operation cimport Operation, Part


# What an attempt can come to.
cdef enum Attempt:
    ANSWERED = 0            # the operation's status says how
    LOST = -1               # the connection was lost, and what took effect is unknown
    LATE = -2               # the deadline passed


cdef class RemoteRegion:
    cdef readonly uint64_t generation
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef bint atomics                   # its words belong to this transport's atomics
    cdef str domain                     # what those are called
    cdef bint closed
    cdef uint64_t born                  # forks when this was made
    cdef int64_t timeout                # ns, where a call gives none
    cdef Py_ssize_t most_parts          # of one operation
    cdef Py_ssize_t most_equal_parts    # of one with parts of one size, if that takes more
    cdef str label
    cdef object renew                   # seconds -> parameters
    cdef object on_close
    cdef public object follow           # (StaleSlab, seconds) -> the region of the memory that has replaced ours
    cdef object __weakref__

    # What a transport does ---------------------------------------------------------------------------------------
    cdef int attempt(self, Operation *operation, int64_t deadline) except -3
    cdef int adopt(self, object params) except -1

    # What it gets ------------------------------------------------------------------------------------------------
    cdef int check(self, Py_ssize_t offset, Py_ssize_t nbytes, bint writes) except -1
    cdef int judge(self, uint64_t offset, uint64_t nbytes, uint8_t status, uint64_t detail) except -1
    cdef int64_t until(self, object timeout) except -1
    cdef double left(self, int64_t deadline) except -1
    cdef object elsewhere(self, object stale, int64_t deadline)
    cdef int operate(self, Operation *operation, int64_t deadline) except -1
    cdef int renew_until(self, int64_t deadline, int attempts) except -1
    cdef uint64_t word(self, uint8_t code, object offset, uint64_t length, uint64_t operand,
                       int64_t deadline) except? 0
    cdef int fill(self, bytes fresh, Py_ssize_t offset, int64_t deadline) except -1
    cdef int single(self, uint8_t code, const Py_buffer *view, Py_ssize_t offset, int64_t deadline) except -1
    cdef object batch(self, list parts, bint writes, int64_t deadline)
    cdef object move(self, object parts, bint writes, int64_t deadline)
    cpdef EqualParts describe(self, object offsets, object nbytes, object buffer, bint inward)
    cdef object move_equal(self, EqualParts parts, int64_t deadline)
    cdef int check_atomics(self) except -1
    cdef int check_span(self, object offset, object nbytes) except -1
