from libc.stdint cimport int64_t, uint32_t, uint64_t

from farpool.native.libsocket cimport iovec
from farpool.native.operation cimport Operation
from farpool.native.remote_region cimport RemoteRegion
from farpool.native.tcp_peer cimport TcpPeer


cdef class TcpRegion(RemoteRegion):
    cdef TcpPeer peer
    cdef uint32_t handle                # what the server calls this attachment
    cdef uint64_t version               # of the peer's credentials that the handle came with

    cdef int exchange(self, Operation *operation, iovec *pieces, int64_t deadline) except -3
