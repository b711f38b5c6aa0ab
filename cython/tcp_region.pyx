"""A slab behind the server's tcp data plane: an attempt is one exchange, without the GIL."""

from libc.stdlib cimport free, malloc

from farpool.native.checks cimport raise_closed
from farpool.native.clock cimport to_ns
from farpool.native.libsocket cimport iovec
from farpool.native.operation cimport OP_READ, OP_READV, OP_WRITE, OP_WRITEV, Operation, Part
from farpool.native.remote_region cimport ANSWERED, LATE, LOST
from farpool.native.stream cimport DONE, EXPIRED
from farpool.native.tcp_parts cimport MOST_AT_ONCE, exchange_parts
from farpool.native.tcp_peer cimport TcpChannel
from farpool.native.tcp_wire cimport MOST_PARTS, WIRE_MAGIC, Answer, Request

from farpool.protocol.errors import ServerLost

cdef enum:
    FEW_PIECES = 6          # iovecs that need no allocation: a header, parts and a buffer, each way
    MOST_EQUAL_PARTS = 65536    # of one operation, which is cut into requests without Python


cdef class TcpRegion(RemoteRegion):
    """One attached slab, reached through the server's tcp data plane; see the stub for the contract."""

    def __init__(self, TcpPeer peer not None, uint32_t handle, uint64_t version, uint64_t generation,
                 Py_ssize_t nbytes, bint writable, bint atomics, str label not None, double timeout, renew, on_close):
        self.peer = peer
        self.handle = handle
        self.version = version
        self.generation = generation
        self.nbytes = nbytes
        self.writable = writable
        self.atomics = atomics
        self.domain = "cpu"
        self.label = label
        self.timeout = to_ns(timeout)
        self.most_parts = MOST_PARTS
        self.most_equal_parts = MOST_EQUAL_PARTS
        self.renew = renew
        self.on_close = on_close

    cdef int adopt(self, object params) except -1:
        self.handle = params["handle"]
        self.version = params["version"]
        return 0

    cdef int attempt(self, Operation *operation, int64_t deadline) except -3:
        """Exchange one request and its answer over a borrowed connection."""
        cdef iovec few[FEW_PIECES]
        cdef iovec *pieces = few
        cdef int outcome
        if operation.whole == NULL and operation.count + 4 > FEW_PIECES:
            pieces = <iovec *> malloc((operation.count + 4) * sizeof(iovec))
            if pieces == NULL:
                raise MemoryError
        try:
            outcome = self.exchange(operation, pieces, deadline)
        finally:
            if pieces != few:
                free(pieces)
        if outcome == DONE:
            return ANSWERED
        return LATE if outcome == EXPIRED else LOST

    cdef int exchange(self, Operation *operation, iovec *pieces, int64_t deadline) except -3:
        cdef bint inward = operation.code in (OP_READ, OP_READV)
        cdef int out_count = 1, in_count = 1, outcome
        cdef iovec *incoming
        cdef Request request
        cdef Answer answer
        cdef TcpChannel channel
        request.magic = WIRE_MAGIC
        request.operation = operation.code
        request.reserved = 0
        request.id = 0
        request.generation = self.generation
        request.offset = operation.offset
        request.length = operation.length
        request.operand = operation.operand
        pieces[0].iov_base = &request
        pieces[0].iov_len = sizeof(Request)
        if operation.code in (OP_READV, OP_WRITEV):
            request.operand = operation.count
            pieces[1].iov_base = <void *> operation.parts
            pieces[1].iov_len = operation.count * sizeof(Part)
            out_count = 2
        if operation.code in (OP_WRITE, OP_WRITEV):
            out_count += line_up(operation, pieces + out_count)
        incoming = pieces + out_count
        incoming[0].iov_base = &answer
        incoming[0].iov_len = sizeof(Answer)
        if inward:
            in_count += line_up(operation, incoming + 1)
        channel = self.peer.take(deadline)
        if self.closed:     # meanwhile, as its session had ended: the connection may be another session's
            self.peer.give(channel)
            raise_closed(self.label)
        if channel.version != self.version:
            # In another start of the server our handle may be another attachment's. Nothing was sent: attach again.
            self.peer.give(channel)
            raise ServerLost("the server has started anew")
        request.handle = self.handle
        try:
            with nogil:
                if operation.count > MOST_AT_ONCE and operation.whole != NULL:
                    outcome = exchange_parts(channel, &request, operation, &answer, deadline)
                else:
                    outcome = channel.exchange(pieces, out_count, incoming, in_count, &answer,
                                               operation.length if inward else 0, deadline)
        except BaseException:
            self.peer.discard(channel)
            raise
        if outcome != DONE:
            self.peer.discard(channel)
            return outcome
        self.peer.give(channel)
        operation.status = answer.status
        operation.detail = answer.detail
        return outcome


cdef int line_up(const Operation *operation, iovec *pieces) noexcept nogil:
    """Point *pieces* to the caller's buffers."""
    cdef Py_ssize_t i
    if operation.whole != NULL:
        pieces[0].iov_base = operation.whole
        pieces[0].iov_len = operation.length
        return 1
    for i in range(operation.count):
        pieces[i].iov_base = operation.views[i].buf
        pieces[i].iov_len = operation.views[i].len
    return <int> operation.count
