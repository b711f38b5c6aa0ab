from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from farpool.native.libsocket cimport iovec
from farpool.native.tcp_peer cimport TcpPeer
from farpool.native.tcp_wire cimport Answer, Part, Request

cdef enum:
    SMALL_BATCH = 2         # iovecs that need no allocation: a header and one buffer


cdef class TcpRegion:
    cdef TcpPeer peer
    cdef uint32_t handle                # what the server calls this attachment
    cdef readonly uint64_t generation
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef bint closed
    cdef uint64_t born                  # forks when this was made
    cdef int64_t timeout                # ns, where a call gives none
    cdef str label
    cdef object renew                   # seconds -> parameters
    cdef object on_close
    cdef object __weakref__

    cdef int check(self, Py_ssize_t offset, Py_ssize_t nbytes, bint writes) except -1
    cdef int64_t deadline(self, object timeout) except -1
    cdef uint64_t operate(self, Request *request, iovec *outgoing, int out_count, iovec *incoming, int in_count,
                          uint64_t expected, object timeout) except? 0
    cdef int attempt(self, Request *request, iovec *outgoing, int out_count, iovec *incoming, int in_count,
                     uint64_t expected, int64_t deadline, Answer *answer) except -3
    cdef int judge(self, const Request *request, const Answer *answer, Py_ssize_t nbytes) except -1
    cdef int renew_until(self, int64_t deadline, int attempts) except -1
    cdef uint64_t word(self, uint8_t operation, object offset, uint64_t length, uint64_t operand,
                       object timeout) except? 0
    cdef object move(self, object parts, bint writes, object timeout)
    cdef int move_some(self, Py_buffer *views, Part *wire, Py_ssize_t count, iovec *pieces, bint writes,
                       object timeout) except -1
    cdef int check_span(self, object offset, object nbytes) except -1
