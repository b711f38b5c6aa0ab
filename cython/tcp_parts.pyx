"""Many parts of one size over one data connection: requests of some of the parts each, one of them sent ahead.

While the answer of one request comes in, the server has the next already, so that no round trip is waited for. Only one
is ahead, and it is small: where the server can send no more, and so reads no more, the sockets' buffers hold it. All
that was sent is answered, also after an answer that is a refusal, and the connection is good for the next exchange.
"""

from farpool.native.clock cimport now_ns
from farpool.native.libsocket cimport iovec
from farpool.native.operation cimport OP_READV, STATUS_OK, Part
from farpool.native.stream cimport CLOSED, DONE, receive_all, send_all
from farpool.native.tcp_wire cimport WIRE_MAGIC


cdef int exchange_parts(TcpChannel channel, Request *request, const Operation *operation, Answer *answer,
                        int64_t deadline) except -3 nogil:
    """Move all parts; *answer* is the first one that is a refusal, or the last."""
    cdef Py_ssize_t sent = 0, answered = 0
    cdef Answer latest
    cdef int outcome
    answer.status = STATUS_OK
    while answered < sent or (sent < operation.count and answer.status == STATUS_OK):
        while sent < operation.count and answer.status == STATUS_OK and sent - answered <= MOST_AT_ONCE:
            outcome = ask(channel, request, operation, sent, deadline)
            if outcome != DONE:
                return outcome
            sent += parts_from(operation, sent)
        outcome = hear(channel, operation, answered, &latest, deadline)
        if outcome != DONE:
            return outcome
        answered += parts_from(operation, answered)
        if answer.status == STATUS_OK:
            answer[0] = latest
    channel.used = now_ns()
    return DONE


cdef Py_ssize_t parts_from(const Operation *operation, Py_ssize_t first) noexcept nogil:
    """Return how many parts the request has that begins with part number *first*."""
    return min(<Py_ssize_t> MOST_AT_ONCE, operation.count - first)


cdef int ask(TcpChannel channel, Request *request, const Operation *operation, Py_ssize_t first,
             int64_t deadline) except -3 nogil:
    """Send one request, with its bytes if it has any."""
    cdef Py_ssize_t count = parts_from(operation, first)
    cdef uint64_t part_nbytes = operation.parts[0].length
    cdef iovec pieces[3]
    request.offset = operation.parts[first].offset
    request.length = count * part_nbytes
    request.operand = count
    pieces[0].iov_base = request
    pieces[0].iov_len = sizeof(Request)
    pieces[1].iov_base = <void *> (operation.parts + first)
    pieces[1].iov_len = count * sizeof(Part)
    pieces[2].iov_base = operation.whole + first * part_nbytes
    pieces[2].iov_len = request.length
    return send_all(&channel.stream, pieces, 2 if operation.code == OP_READV else 3, deadline)


cdef int hear(TcpChannel channel, const Operation *operation, Py_ssize_t first, Answer *answer,
              int64_t deadline) except -3 nogil:
    """Receive one answer: the header alone, since behind it may come another, and then its bytes."""
    cdef uint64_t nbytes = parts_from(operation, first) * operation.parts[0].length
    cdef uint64_t expected
    cdef iovec piece
    cdef int outcome
    piece.iov_base = answer
    piece.iov_len = sizeof(Answer)
    outcome = receive_all(&channel.stream, &piece, 1, deadline)
    if outcome != DONE:
        return outcome
    expected = nbytes if operation.code == OP_READV and answer.status == STATUS_OK else 0
    if answer.magic != WIRE_MAGIC or answer.length != expected:
        return CLOSED
    piece.iov_base = operation.whole + first * operation.parts[0].length
    piece.iov_len = expected
    return receive_all(&channel.stream, &piece, 1, deadline)
