from libc.stdint cimport uint8_t, uint64_t

from farpool.native.operation cimport Part
from farpool.native.tcp_connection cimport Connection, Reply, Span, Worker
from farpool.native.tcp_wire cimport Request

cdef Reply *owe(Connection *connection, const Request *request, uint8_t status, uint64_t detail) noexcept nogil
cdef void owe_bytes(Connection *connection, const Request *request, Part *parts, uint64_t count) noexcept nogil
cdef bint is_unsent(const Connection *connection) noexcept nogil
cdef int flush(Worker *worker, Connection *connection) noexcept nogil
cdef void span_clear(Span *span) noexcept nogil
cdef void span_advance(Span *span, uint64_t nbytes) noexcept nogil
