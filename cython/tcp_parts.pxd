from libc.stdint cimport int64_t, uint64_t

from farpool.native.operation cimport Operation
from farpool.native.tcp_peer cimport TcpChannel
from farpool.native.tcp_wire cimport Answer, Request

cdef enum:
    MOST_AT_ONCE = 1024     # parts of one request of several; a request ahead is 16 KiB, which any socket takes

cdef int exchange_parts(TcpChannel channel, Request *request, const Operation *operation, Answer *answer,
                        int64_t deadline) except -3 nogil
