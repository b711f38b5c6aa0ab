from libc.stdint cimport int64_t

from farpool.native.equal_parts cimport EqualParts
from farpool.native.libsocket cimport iovec
from farpool.native.operation cimport Part
from farpool.native.tcp_region cimport TcpRegion
from farpool.native.tcp_wire cimport Request


cdef class Pending:
    cdef TcpRegion region
    cdef object future
    cdef Request request
    cdef int64_t deadline
    cdef Py_buffer *views           # held until the answer has come
    cdef Py_ssize_t count
    cdef EqualParts equal           # held in their stead, if the parts are of one size
    cdef iovec whole                # where the bytes of those are
    cdef Part *wire                 # the parts of a vector request
    cdef iovec *pieces              # out: header, parts, payload; in: the buffers
    cdef iovec *left                # first piece that is not done
    cdef int pieces_left
    cdef bint begun                 # a byte of it is out
    cdef bint inward                # its answer carries bytes

    cdef void release(self) noexcept
    cdef int hold_equal(self, EqualParts equal, Py_ssize_t first, Py_ssize_t number) except -1
    cdef int hold(self, list parts, bint vector) except -1
    cdef void aim_out(self, bint vector) noexcept
    cdef void aim_in(self) noexcept
