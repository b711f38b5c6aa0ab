"""The answers that a data connection owes, and how they are sent: one system call for all that the socket takes.

Slab bytes go from the slab to the socket. An attachment is pinned for the length of one non-blocking call; if it ended
in the middle of its answer, the connection is dropped, since nothing else can follow half an answer. So it is if the
slab's file was cut short meanwhile: zeroes that stand in for it may be out.
"""

from libc.errno cimport EAGAIN, EFAULT, EINTR, errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from farpool.native.bus_guard cimport touch
from farpool.native.cipher cimport send_through
from farpool.native.libsocket cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr
from farpool.native.operation cimport STATUS_OK, STATUS_STALE
from farpool.native.slab_table cimport Entry, is_lost, pin, unpin
from farpool.native.tcp_connection cimport DROP, KEEP, MOST_REPLIES
from farpool.native.tcp_wire cimport WIRE_MAGIC, Answer

cdef enum:
    MOST_PIECES = 256       # iovecs in one call


cdef struct Batch:          # what one sendmsg sends
    iovec pieces[MOST_PIECES]
    Entry *pinned[MOST_REPLIES]
    int piece_count
    int pin_count
    uint64_t total


cdef void span_clear(Span *span) noexcept nogil:
    if span.parts != &span.single:
        free(span.parts)
    span.parts = &span.single
    span.count = 0
    span.index = 0
    span.done = 0


cdef void span_advance(Span *span, uint64_t nbytes) noexcept nogil:
    """Step over *nbytes*."""
    cdef uint64_t here
    while span.index < span.count:
        here = span.parts[span.index].length - span.done
        if nbytes < here:
            span.done += nbytes
            return
        nbytes -= here
        span.index += 1
        span.done = 0


cdef Reply *owe(Connection *connection, const Request *request, uint8_t status, uint64_t detail) noexcept nogil:
    """Add an answer without bytes; the caller has seen that there is a place."""
    cdef Reply *reply = &connection.replies[(connection.first + connection.owed) % MOST_REPLIES]
    connection.owed += 1
    reply.answer.magic = WIRE_MAGIC
    reply.answer.operation = request.operation
    reply.answer.status = status
    reply.answer.handle = request.handle
    reply.answer.id = request.id
    reply.answer.length = 0
    reply.answer.detail = detail
    reply.header_sent = 0
    reply.generation = request.generation
    reply.span.parts = &reply.span.single
    reply.span.count = 0
    reply.span.index = 0
    reply.span.done = 0
    return reply


cdef void owe_bytes(Connection *connection, const Request *request, Part *parts, uint64_t count) noexcept nogil:
    """Add an answer with the bytes of *parts* (from malloc, and ours from now on), or of the request's own range."""
    cdef Reply *reply = owe(connection, request, STATUS_OK, 0)
    reply.answer.length = request.length
    reply.span.count = <uint32_t> count
    if parts == NULL:
        reply.span.single.offset = request.offset
        reply.span.single.length = request.length
    else:
        reply.span.parts = parts
    connection.reads += 1


cdef bint collect_payload(Batch *batch, Entry *entry, Span *span, uint64_t most) noexcept nogil:
    """Add the rest of a span to the batch, up to *most* bytes in all; return whether all of it fitted."""
    cdef uint32_t index = span.index
    cdef uint64_t done = span.done
    cdef iovec *piece
    while index < span.count:
        if batch.piece_count == MOST_PIECES or batch.total >= most:
            return False
        piece = &batch.pieces[batch.piece_count]
        piece.iov_base = entry.base + span.parts[index].offset + done
        piece.iov_len = span.parts[index].length - done
        batch.piece_count += 1
        if piece.iov_len > most - batch.total:
            piece.iov_len = most - batch.total
            batch.total = most
            return False
        batch.total += piece.iov_len
        index += 1
        done = 0
    return True


cdef int collect(Worker *worker, Connection *connection, Batch *batch) noexcept nogil:
    """Gather as many owed answers as one call can send, and pin what they show."""
    cdef Entry *entry
    cdef Reply *reply
    cdef uint32_t i
    cdef bint fits = True
    batch.piece_count = 0
    batch.pin_count = 0
    batch.total = 0
    for i in range(connection.owed):
        if not fits or batch.piece_count >= MOST_PIECES - 1:
            break
        reply = &connection.replies[(connection.first + i) % MOST_REPLIES]
        entry = NULL
        if reply.span.count:
            entry = pin(worker.shared.entries, worker.shared.capacity, reply.answer.handle, connection.session,
                        reply.generation)
            if entry != NULL and is_lost(entry):
                unpin(entry)
                entry = NULL
            if entry != NULL:
                batch.pinned[batch.pin_count] = entry
                batch.pin_count += 1
            elif reply.header_sent:
                return DROP
            else:
                span_clear(&reply.span)
                connection.reads -= 1
                reply.answer.status = STATUS_STALE
                reply.answer.length = 0
        if reply.header_sent < sizeof(Answer):
            batch.pieces[batch.piece_count].iov_base = <char *> &reply.answer + reply.header_sent
            batch.pieces[batch.piece_count].iov_len = sizeof(Answer) - reply.header_sent
            batch.total += sizeof(Answer) - reply.header_sent
            batch.piece_count += 1
        if entry != NULL:
            fits = collect_payload(batch, entry, &reply.span, worker.budget)
    return KEEP


cdef void retire(Worker *worker, Connection *connection, uint64_t sent) noexcept nogil:
    """Note what was sent, and forget the answers that are out."""
    cdef Reply *reply
    cdef uint64_t here, left
    while connection.owed:
        reply = &connection.replies[connection.first]
        here = sizeof(Answer) - reply.header_sent
        if sent < here:
            reply.header_sent += <uint32_t> sent
            return
        reply.header_sent = sizeof(Answer)
        sent -= here
        if reply.span.count:
            left = payload_left(&reply.span)
            worker.counters.bytes_read += sent if sent < left else left
            if sent < left:
                span_advance(&reply.span, sent)
                return
            sent -= left
            span_clear(&reply.span)
            connection.reads -= 1
        connection.first = (connection.first + 1) % MOST_REPLIES
        connection.owed -= 1


cdef uint64_t payload_left(const Span *span) noexcept nogil:
    cdef uint64_t left = 0
    cdef uint32_t i
    for i in range(span.index, span.count):
        left += span.parts[i].length
    return left - span.done


cdef bint is_unsent(const Connection *connection) noexcept nogil:
    """Tell whether the connection's cipher has a record that is not wholly out."""
    return connection.cipher != NULL and connection.cipher.unsent != 0


cdef int push(Connection *connection) noexcept nogil:
    """Send the rest of a record, as far as the socket takes it."""
    if connection.cipher.push(connection.cipher) == 0:
        return KEEP
    connection.blocked = errno in (EAGAIN, EINTR)
    return KEEP if connection.blocked else DROP


cdef void touch_ends(const Batch *batch) noexcept nogil:
    """Meet the fault of a file that was cut short, if there is one: where the end of a part is, all of it is."""
    cdef int i
    for i in range(batch.piece_count):
        if batch.pieces[i].iov_len:
            touch(<uint8_t *> batch.pieces[i].iov_base + batch.pieces[i].iov_len - 1, 1)


cdef bint any_lost(const Batch *batch) noexcept nogil:
    """Tell whether zeroes are, or were sent, in the place of a slab's bytes."""
    cdef int i
    for i in range(batch.pin_count):
        if is_lost(batch.pinned[i]):
            return True
    return False


cdef int flush(Worker *worker, Connection *connection) noexcept nogil:
    """Send what is owed, as far as the socket takes it; ``blocked`` tells that some is left."""
    cdef Batch batch
    cdef msghdr message
    cdef ssize_t sent
    cdef int i, verdict
    cdef bint faulted
    connection.blocked = False
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = NULL
    message.msg_controllen = 0
    message.msg_flags = 0
    while connection.owed:
        if worker.budget <= 0:
            connection.blocked = True   # others have their turn first
            return KEEP
        faulted = False
        verdict = collect(worker, connection, &batch)
        if verdict == KEEP:
            message.msg_iov = batch.pieces
            message.msg_iovlen = batch.piece_count
            if connection.cipher != NULL:   # it reads the bytes itself, and then it is too late
                touch_ends(&batch)
                faulted = any_lost(&batch)
            if not faulted:
                sent = send_through(connection.fd, connection.cipher, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent < 0 and errno == EFAULT:
                    touch_ends(&batch)
                    for i in range(0 if any_lost(&batch) else batch.piece_count):   # a hole and a full tmpfs
                        touch(batch.pieces[i].iov_base, batch.pieces[i].iov_len)
                    faulted = True
                if any_lost(&batch) != faulted:     # it was cut short while this was sent; or we know of no reason
                    verdict = DROP
        for i in range(batch.pin_count):
            unpin(batch.pinned[i])
        if verdict != KEEP:
            return DROP
        if faulted:
            continue    # that slab's answer becomes another
        if sent < 0:
            if errno == EINTR:
                continue
            connection.blocked = errno == EAGAIN
            return KEEP if connection.blocked else DROP
        worker.budget -= sent
        retire(worker, connection, sent)
        if <uint64_t> sent < batch.total:
            connection.blocked = True
            return KEEP
    return push(connection) if is_unsent(connection) else KEEP
