from libc.stdint cimport uint8_t, uint64_t

from farpool.native.tcp_connection cimport Connection, Worker
from farpool.native.tcp_wire cimport Request

cdef struct Admission:          # what becomes of a hello
    uint8_t status              # and detail: its answer
    uint64_t detail
    int event                   # and number: what the log says of it, unless its client was let in
    uint64_t number
    uint64_t session            # 0 where it is not known

cdef Admission admit(Worker *worker, Connection *connection, const Request *request) noexcept nogil
cdef void dismiss(Worker *worker, Connection *connection) noexcept nogil
