from libc.stdint cimport int64_t

from farpool.native.cipher cimport Cipher
from farpool.native.libsocket cimport iovec

# What a blocking transfer can end with.
cdef enum Outcome:
    DONE = 0
    CLOSED = -1     # end of file, or an error of the socket: the connection is of no more use
    EXPIRED = -2    # the deadline passed
    RAISED = -3     # a signal handler raised: Cython propagates its exception

cdef struct Stream:
    int fd
    int64_t receive_wait    # what SO_RCVTIMEO is set to now, ns
    int64_t send_wait       # the same of SO_SNDTIMEO
    Cipher *cipher          # NULL: in clear; whoever has the stream keeps its owner alive

cdef void stream_init(Stream *stream, int fd) noexcept nogil
cdef int receive_some(Stream *stream, iovec *parts, int count, int flags, int64_t deadline,
                      ssize_t *got) except -3 nogil
cdef int receive_all(Stream *stream, iovec *parts, int count, int64_t deadline) except -3 nogil
cdef int send_all(Stream *stream, iovec *parts, int count, int64_t deadline) except -3 nogil
cdef int advance(iovec **parts, int count, size_t done) noexcept nogil
