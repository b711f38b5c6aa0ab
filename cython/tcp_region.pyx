"""A slab behind the server's tcp data plane, for synchronous callers.

The fast path is one exchange without the GIL. Everything else (a lost connection, a restarted server, an expired
session) goes through ``renew``, which asks the control plane, and ends at the operation's deadline.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import time

from farpool.native.checks cimport (
    as_addend,
    as_offset,
    as_word,
    get_source,
    get_target,
    outside,
    raise_closed,
    raise_forked,
    raise_misaligned,
    raise_out_of_bounds,
    raise_read_only,
    raise_stale,
)
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.fork cimport forks
from farpool.native.stream cimport DONE, EXPIRED
from farpool.native.tcp_peer cimport TcpChannel
from farpool.native.tcp_wire cimport (
    MOST_PARTS,
    OP_COMPARE_SWAP,
    OP_FETCH_ADD,
    OP_LOAD,
    OP_READ,
    OP_READV,
    OP_STORE,
    OP_WRITE,
    OP_WRITEV,
    STATUS_OK,
    STATUS_OUT_OF_BOUNDS,
    STATUS_READ_ONLY,
    STATUS_STALE,
    WIRE_MAGIC,
)

from farpool.protocol.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    NotMappable,
    ProtocolError,
    ServerLost,
)

cdef enum:
    BACKOFF_NS = 10000000       # rest before the third attempt, and more before each later one


cdef class TcpRegion:
    """One attached slab, reached through the server's tcp data plane; see the stub for the contract."""

    def __init__(self, TcpPeer peer not None, uint32_t handle, uint64_t generation, Py_ssize_t nbytes, bint writable,
                 str label not None, double timeout, renew, on_close):
        self.peer = peer
        self.handle = handle
        self.generation = generation
        self.nbytes = nbytes
        self.writable = writable
        self.label = label
        self.timeout = to_ns(timeout)
        self.renew = renew
        self.on_close = on_close
        self.born = forks

    cdef inline int check(self, Py_ssize_t offset, Py_ssize_t nbytes, bint writes) except -1:
        if self.closed:
            return raise_closed(self.label)
        if self.born != forks:
            return raise_forked()
        if outside(offset, nbytes, self.nbytes):
            return raise_out_of_bounds(offset, nbytes, self.nbytes, self.label)
        if writes and not self.writable:
            return raise_read_only(self.label)
        return 0

    cdef inline int64_t deadline(self, object timeout) except -1:
        return now_ns() + (self.timeout if timeout is None else to_ns(timeout))

    cdef uint64_t operate(self, Request *request, iovec *outgoing, int out_count, iovec *incoming, int in_count,
                          uint64_t expected, object timeout) except? 0:
        """Carry one request to its end: an answer, or an error by the deadline. Return the answer's detail.

        ``outgoing[0]`` and ``incoming[0]`` are for the headers.
        """
        cdef int64_t deadline = self.deadline(timeout)
        cdef bint again = request.operation in (OP_READ, OP_READV, OP_LOAD)
        cdef int attempts = 0, outcome
        cdef Answer answer
        request.magic = WIRE_MAGIC
        request.reserved = 0
        request.id = 0
        request.generation = self.generation
        while True:
            attempts += 1
            request.handle = self.handle
            try:
                outcome = self.attempt(request, outgoing, out_count, incoming, in_count, expected, deadline, &answer)
            except (ServerLost, AuthenticationFailed):
                # No connection was to be had, and so nothing was sent.
                self.renew_until(deadline, attempts)
                continue
            if outcome == DONE and answer.status == STATUS_OK:
                return answer.detail
            if outcome == EXPIRED:
                host, port = self.peer.address
                raise DeadlineExceeded(
                    f"slab {self.label}: no answer from {host}:{port} within the deadline; "
                    + ("raise timeout=" if again else "whether the change took effect is unknown")
                )
            if outcome == DONE and not (answer.status == STATUS_STALE and attempts == 1):
                self.judge(request, &answer, expected if again else request.length)
            if outcome != DONE and not again:
                raise ServerLost(
                    f"slab {self.label}: the connection was lost; whether the change took effect is unknown"
                )
            self.renew_until(deadline, attempts)

    cdef int attempt(self, Request *request, iovec *outgoing, int out_count, iovec *incoming, int in_count,
                     uint64_t expected, int64_t deadline, Answer *answer) except -3:
        """Try once. The arrays are copied, since an exchange uses them up."""
        cdef iovec small[2 * SMALL_BATCH]
        cdef iovec *scratch = small
        cdef int outcome
        cdef TcpChannel channel
        if out_count > SMALL_BATCH or in_count > SMALL_BATCH:
            scratch = <iovec *> malloc((out_count + in_count) * sizeof(iovec))
            if scratch == NULL:
                raise MemoryError
        try:
            memcpy(scratch, outgoing, out_count * sizeof(iovec))
            memcpy(scratch + out_count, incoming, in_count * sizeof(iovec))
            scratch[0].iov_base = request
            scratch[0].iov_len = sizeof(Request)
            scratch[out_count].iov_base = answer
            scratch[out_count].iov_len = sizeof(Answer)
            channel = self.peer.take(deadline)
            try:
                with nogil:
                    outcome = channel.exchange(scratch, out_count, scratch + out_count, in_count, answer, expected,
                                               deadline)
            except BaseException:
                self.peer.discard(channel)
                raise
            if outcome == DONE:
                self.peer.give(channel)
            else:
                self.peer.discard(channel)
            return outcome
        finally:
            if scratch != small:
                free(scratch)

    cdef int judge(self, const Request *request, const Answer *answer, Py_ssize_t nbytes) except -1:
        """Raise what the server's answer means."""
        if answer.status == STATUS_STALE:
            raise_stale(self.label)
        if answer.status == STATUS_OUT_OF_BOUNDS:
            raise_out_of_bounds(request.offset, nbytes, answer.detail, self.label)
        if answer.status == STATUS_READ_ONLY:
            raise_read_only(self.label)
        raise ProtocolError(
            f"slab {self.label}: the server refused a request with status {answer.status}; please report it"
        )

    cdef int renew_until(self, int64_t deadline, int attempts) except -1:
        """Attach again through the control plane, and rest a little between attempts that lead nowhere."""
        cdef int64_t left = deadline - now_ns()
        if attempts > 2:
            time.sleep(max(0, min(left, attempts * <int64_t> BACKOFF_NS)) / 1e9)
            left = deadline - now_ns()
        if left <= 0:
            raise DeadlineExceeded(f"slab {self.label}: the server could not be reached again within the deadline")
        self.refresh(left / 1e9)
        return 0

    def check_range(self, offset, nbytes):
        """Raise what a read of *nbytes* at *offset* would raise before it is sent."""
        self.check(as_offset(offset), as_offset(nbytes), False)

    def check_parts(self, parts, bint writes):
        """Raise what a batch would raise before any of it is sent."""
        cdef Py_buffer view
        self.check(0, 0, writes)
        for offset, buffer in parts:
            if writes:
                get_source(buffer, &view)
            else:
                get_target(buffer, &view)
            try:
                self.check(as_offset(offset), view.len, writes)
            finally:
                PyBuffer_Release(&view)

    def refresh(self, double seconds):
        """Attach again through the control plane, within *seconds*."""
        self.check(0, 0, False)
        params = self.renew(seconds)
        if self.closed:
            raise_closed(self.label)
        self.handle = params["handle"]

    def read_into(self, buffer, offset=0, timeout=None):
        """Fill *buffer* from the slab and return the bytes read."""
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_buffer view
        cdef iovec outgoing[1]
        cdef iovec incoming[2]
        cdef Request request
        get_target(buffer, &view)
        try:
            self.check(start, view.len, False)
            request.operation = OP_READ
            request.offset = start
            request.length = view.len
            request.operand = 0
            incoming[1].iov_base = view.buf
            incoming[1].iov_len = view.len
            self.operate(&request, outgoing, 1, incoming, 2, view.len, timeout)
            return view.len
        finally:
            PyBuffer_Release(&view)

    def read(self, nbytes, offset=0, timeout=None):
        """Return new bytes from the slab."""
        cdef Py_ssize_t start = as_offset(offset), length = as_offset(nbytes)
        cdef iovec outgoing[1]
        cdef iovec incoming[2]
        cdef Request request
        cdef bytes result
        self.check(start, length, False)
        result = PyBytes_FromStringAndSize(NULL, length)
        request.operation = OP_READ
        request.offset = start
        request.length = length
        request.operand = 0
        incoming[1].iov_base = PyBytes_AS_STRING(result)
        incoming[1].iov_len = length
        self.operate(&request, outgoing, 1, incoming, 2, length, timeout)
        return result

    def write(self, buffer, offset=0, timeout=None):
        """Copy *buffer* into the slab and return the bytes written."""
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_buffer view
        cdef iovec outgoing[2]
        cdef iovec incoming[1]
        cdef Request request
        get_source(buffer, &view)
        try:
            self.check(start, view.len, True)
            request.operation = OP_WRITE
            request.offset = start
            request.length = view.len
            request.operand = 0
            outgoing[1].iov_base = view.buf
            outgoing[1].iov_len = view.len
            self.operate(&request, outgoing, 2, incoming, 1, 0, timeout)
            return view.len
        finally:
            PyBuffer_Release(&view)

    def readv(self, parts, timeout=None):
        """Fill many buffers in one batch; every range is checked before a byte moves. Return the bytes read."""
        return self.move(list(parts), False, timeout)

    def writev(self, parts, timeout=None):
        """Write many buffers in one batch; every range is checked before a byte moves. Return the bytes written."""
        return self.move(list(parts), True, timeout)

    cdef object move(self, object parts, bint writes, object timeout):
        cdef Py_ssize_t count = len(parts), held = 0, i, total = 0
        cdef Py_buffer *views = <Py_buffer *> malloc((count or 1) * sizeof(Py_buffer))
        cdef Part *wire = <Part *> malloc((count or 1) * sizeof(Part))
        cdef iovec *pieces = <iovec *> malloc((min(count, <Py_ssize_t> MOST_PARTS) + 2) * sizeof(iovec))
        try:
            if views == NULL or wire == NULL or pieces == NULL:
                raise MemoryError
            self.check(0, 0, writes)
            for offset, buffer in parts:
                if writes:
                    get_source(buffer, &views[held])
                else:
                    get_target(buffer, &views[held])
                held += 1
                start = as_offset(offset)
                self.check(start, views[held - 1].len, writes)
                wire[held - 1].offset = start
                wire[held - 1].length = views[held - 1].len
                total += views[held - 1].len
            left = self.timeout / 1e9 if timeout is None else timeout
            end = time.monotonic() + left
            for i in range(0, count, MOST_PARTS):
                self.move_some(views + i, wire + i, min(<Py_ssize_t> MOST_PARTS, count - i), pieces, writes,
                               left if i == 0 else end - time.monotonic())
            return total
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(wire)
            free(pieces)

    cdef int move_some(self, Py_buffer *views, Part *wire, Py_ssize_t count, iovec *pieces, bint writes,
                       object timeout) except -1:
        """Move at most ``MOST_PARTS`` parts with one request."""
        cdef iovec bare[2]
        cdef Request request
        cdef Py_ssize_t i
        cdef iovec *data = pieces + 2 if writes else pieces + 1
        request.operation = OP_WRITEV if writes else OP_READV
        request.offset = wire[0].offset
        request.length = 0
        request.operand = count
        for i in range(count):
            data[i].iov_base = views[i].buf
            data[i].iov_len = views[i].len
            request.length += views[i].len
        if writes:
            pieces[1].iov_base = wire
            pieces[1].iov_len = count * sizeof(Part)
            self.operate(&request, pieces, <int> count + 2, bare, 1, 0, timeout)
        else:
            bare[1].iov_base = wire
            bare[1].iov_len = count * sizeof(Part)
            self.operate(&request, bare, 2, pieces, <int> count + 1, request.length, timeout)
        return 0

    cdef uint64_t word(self, uint8_t operation, object offset, uint64_t length, uint64_t operand,
                       object timeout) except? 0:
        """Do one operation on an aligned word; return the answer's detail."""
        cdef Py_ssize_t start = as_offset(offset)
        cdef iovec outgoing[1]
        cdef iovec incoming[1]
        cdef Request request
        self.check(start, 8, operation != OP_LOAD)
        if start & 7:
            raise_misaligned(start, self.label)
        request.operation = operation
        request.offset = start
        request.length = length
        request.operand = operand
        return self.operate(&request, outgoing, 1, incoming, 1, 0, timeout)

    def load(self, offset, timeout=None):
        """Return the aligned unsigned 8-byte little-endian word at *offset*."""
        return self.word(OP_LOAD, offset, 0, 0, timeout)

    def store(self, offset, value, timeout=None):
        """Set the aligned word at *offset*; other readers see the old or the new value, never a mix."""
        self.word(OP_STORE, offset, 0, as_word(value), timeout)

    def fetch_add(self, offset, value, timeout=None):
        """Add *value* (modulo 2**64) to the aligned word at *offset* atomically; return the old value."""
        return self.word(OP_FETCH_ADD, offset, 0, as_addend(value), timeout)

    def compare_swap(self, offset, expected, new, timeout=None):
        """Set the aligned word at *offset* to *new* if it is *expected*, atomically; return the old value."""
        return self.word(OP_COMPARE_SWAP, offset, as_word(expected), as_word(new), timeout)

    cdef int check_span(self, object offset, object nbytes) except -1:
        cdef Py_ssize_t start = as_offset(offset)
        return self.check(start, self.nbytes - start if nbytes is None else as_offset(nbytes), False)

    def flush(self, offset=0, nbytes=None):
        """Do nothing: a write has reached the slab when it returns."""
        self.check_span(offset, nbytes)

    def invalidate(self, offset=0, nbytes=None):
        """Do nothing: a read fetches the slab's bytes anew."""
        self.check_span(offset, nbytes)

    def view(self, offset=0, nbytes=None):
        """Raise ``NotMappable``: these bytes are behind a socket."""
        self.check_span(offset, nbytes)
        raise NotMappable(
            f"slab {self.label} is attached over tcp and has no local memory; use read_into, or connect with "
            "transport=\"cxl\" on the server's host"
        )

    def close(self):
        """Let go of the slab. A second call does nothing; later operations raise ``StaleSlab``."""
        if self.closed:
            return
        self.closed = True
        if self.on_close is not None and self.born == forks:
            self.on_close()
