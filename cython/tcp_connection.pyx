"""One data connection as the server sees it: requests in, operations on slab memory, answers out.

No GIL, no Python object, no allocation for a plain read or write. Requests of one connection take effect in order, and
are answered in order. A peer that asks and does not read is not read from either (``stalled``), so that it costs a
bounded amount of memory. Whatever is wrong inside a well-formed request is an answer; anything else drops the
connection.
"""

from libc.errno cimport EAGAIN, EFAULT, EINTR, errno
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from farpool.native.bus_guard cimport touch
from farpool.native.cipher cimport receive_through
from farpool.native.libatomics cimport compare_swap_word, fetch_add_word, load_word, store_word
from farpool.native.libsocket cimport MSG_DONTWAIT, MSG_PEEK, iovec, msghdr, recv
from farpool.native.operation cimport (
    OP_COMPARE_SWAP,
    OP_FETCH_ADD,
    OP_HELLO,
    OP_LOAD,
    OP_READ,
    OP_READV,
    OP_STORE,
    OP_WRITE,
    OP_WRITEV,
    STATUS_INVALID,
    STATUS_OK,
    STATUS_OUT_OF_BOUNDS,
    STATUS_READ_ONLY,
    STATUS_STALE,
)
from farpool.native.slab_table cimport Entry, is_lost, pin, unpin
from farpool.native.tcp_admission cimport Admission, admit
from farpool.native.tcp_answers cimport flush, is_unsent, owe, owe_bytes, span_advance, span_clear
from farpool.native.tcp_events cimport report, show_changed
from farpool.native.tcp_wire cimport MOST_PARTS, WIRE_MAGIC
from farpool.native.watched_word cimport wake_waiters

cdef enum:
    TLS_HANDSHAKE = 0x16    # first byte of a client that speaks TLS; those of our hello are others
    MOST_ROUNDS = 8         # receives before other connections have their turn
    DIRECT_PIECES = 32      # parts of a payload that one receive fills
    REQUEST_BYTES = 512     # what a request counts besides its bytes


cdef void forget(Connection *connection) noexcept nogil:
    """Free what the connection holds, but for its descriptor and itself."""
    cdef uint32_t i
    for i in range(connection.owed):
        span_clear(&connection.replies[(connection.first + i) % MOST_REPLIES].span)
    if connection.writing:
        span_clear(&connection.span)
    free(connection.spill)
    connection.spill = NULL
    if connection.cipher != NULL:
        connection.cipher.free(connection.cipher)
        connection.cipher = NULL


cdef bint changes_memory(uint8_t operation) noexcept nogil:
    return operation not in (OP_READ, OP_READV, OP_LOAD, OP_HELLO)


cdef int greet(Worker *worker, Connection *connection, const Request *request) noexcept nogil:
    """Answer a hello."""
    cdef Admission admission
    if connection.known or request.operation != OP_HELLO:
        report(worker.shared, EVENT_DISORDER, connection.peer, request.operation)
        return DROP
    admission = admit(worker, connection, request)
    owe(connection, request, admission.status, admission.detail)
    if admission.status == STATUS_OK:
        return KEEP
    report(worker.shared, admission.event, connection.peer, admission.number, admission.session)
    flush(worker, connection)
    return DROP


cdef uint8_t check_range(const Entry *entry, uint64_t offset, uint64_t length) noexcept nogil:
    if length > entry.nbytes or offset > entry.nbytes - length:
        return STATUS_OUT_OF_BOUNDS
    return STATUS_OK


cdef uint8_t check_parts(const Entry *entry, const Request *request, const uint8_t *wire) noexcept nogil:
    """Check that each part is within the slab, and that they add up to the request's length."""
    cdef Part part
    cdef uint64_t i, total = 0
    for i in range(request.operand):
        memcpy(&part, wire + i * sizeof(Part), sizeof(Part))
        if check_range(entry, part.offset, part.length) != STATUS_OK:
            return STATUS_OUT_OF_BOUNDS
        total += part.length    # at most 4,096 times a slab's size: no overflow
    return STATUS_OK if total == request.length else STATUS_INVALID


cdef uint8_t check(const Entry *entry, const Request *request, const uint8_t *wire) noexcept nogil:
    """Check rights and bounds before a byte moves."""
    if entry == NULL:
        return STATUS_STALE
    if changes_memory(request.operation) and not entry.writable:
        return STATUS_READ_ONLY
    if request.operation in (OP_READV, OP_WRITEV):
        return check_parts(entry, request, wire)
    if request.operation in (OP_READ, OP_WRITE):
        return check_range(entry, request.offset, request.length)
    if check_range(entry, request.offset, 8) != STATUS_OK:
        return STATUS_OUT_OF_BOUNDS
    return STATUS_INVALID if request.offset & 7 else STATUS_OK


cdef void wake(Shared *shared, Entry *entry, uint64_t offset, uint64_t nbytes) noexcept nogil:
    """Wake those who wait for what was just stored to."""
    cdef uint64_t watched = load_word(&entry.watched)
    if watched:
        wake_waiters(entry.base, watched, offset, nbytes)
        show_changed(shared, entry)


cdef uint64_t word_operation(Entry *entry, const Request *request) noexcept nogil:
    cdef uint64_t *word = <uint64_t *> (entry.base + request.offset)
    if request.operation == OP_LOAD:
        return load_word(word)
    if request.operation == OP_STORE:
        store_word(word, request.operand)
        return 0
    if request.operation == OP_FETCH_ADD:
        return fetch_add_word(word, request.operand)
    return compare_swap_word(word, request.length, request.operand)


cdef Part *copy_parts(const uint8_t *wire, uint64_t count) noexcept nogil:
    cdef Part *parts = <Part *> malloc(count * sizeof(Part))
    if parts != NULL:
        memcpy(parts, wire, count * sizeof(Part))
    return parts


cdef int execute(Worker *worker, Connection *connection, const Request *request, const uint8_t *wire) noexcept nogil:
    """Do one request, or begin to take its payload."""
    cdef Entry *entry = pin(worker.shared.entries, worker.shared.capacity, request.handle, connection.session,
                            request.generation)
    cdef uint8_t status = check(entry, request, wire)
    cdef uint64_t detail = entry.nbytes if entry != NULL else 0
    cdef bint vector = request.operation in (OP_READV, OP_WRITEV)
    cdef Part *parts = NULL
    worker.counters.operations[request.operation] += 1
    if status == STATUS_OK and request.operation >= OP_LOAD:
        detail = word_operation(entry, request)
        if is_lost(entry):
            status = STATUS_STALE
            detail = 0
        elif request.operation != OP_LOAD:
            wake(worker.shared, entry, request.offset, 8)
    if entry != NULL:
        unpin(entry)
    if status == STATUS_READ_ONLY and not connection.forbidden:     # one is enough to know its session by
        connection.forbidden = True
        report(worker.shared, EVENT_READ_ONLY, connection.peer, request.generation, connection.session)
    if status != STATUS_OK:
        worker.counters.errors += 1
    elif vector and request.operand:
        parts = copy_parts(wire, request.operand)
        if parts == NULL:
            return DROP
    if request.operation in (OP_WRITE, OP_WRITEV):
        connection.writing = True
        connection.status = status
        connection.request = request[0]
        connection.left = request.length
        connection.span.single.offset = request.offset
        connection.span.single.length = request.length
        connection.span.parts = parts if parts != NULL else &connection.span.single
        connection.span.count = <uint32_t> request.operand if vector else 1
        connection.span.index = 0
        connection.span.done = 0
    elif status == STATUS_OK and request.length and request.operation in (OP_READ, OP_READV):
        owe_bytes(connection, request, parts, request.operand if vector else 1)
    else:
        free(parts)     # a batch of empty parts
        owe(connection, request, status, detail)
    return KEEP


cdef Entry *pin_target(Worker *worker, Connection *connection) noexcept nogil:
    """Pin where the payload goes; NULL where it is to be thrown away."""
    cdef Entry *entry
    if connection.status != STATUS_OK:
        return NULL
    entry = pin(worker.shared.entries, worker.shared.capacity, connection.request.handle, connection.session,
                connection.request.generation)
    if entry == NULL:
        connection.status = STATUS_STALE    # it ended while its payload was coming
    elif load_word(&entry.watched):
        connection.watched = True
    return entry


cdef void wake_written(Worker *worker, Connection *connection) noexcept nogil:
    """Wake those who wait for what a payload has stored to."""
    cdef Entry *entry = pin_target(worker, connection)
    cdef uint32_t i
    connection.watched = False
    if entry == NULL:
        return
    for i in range(connection.span.count):
        wake(worker.shared, entry, connection.span.parts[i].offset, connection.span.parts[i].length)
    unpin(entry)


cdef uint64_t take_payload(Worker *worker, Connection *connection, const uint8_t *data, uint64_t nbytes) noexcept nogil:
    """Copy what has come of a payload to the slab; return the bytes used."""
    cdef Entry *entry = pin_target(worker, connection)
    cdef Span *span = &connection.span
    cdef Part *part
    cdef uint64_t used = 0, here
    if nbytes > connection.left:
        nbytes = connection.left
    while entry != NULL and used < nbytes:
        part = &span.parts[span.index]
        here = part.length - span.done
        if here > nbytes - used:
            here = nbytes - used
        memcpy(entry.base + part.offset + span.done, data + used, here)
        span_advance(span, here)
        used += here
    if entry != NULL:
        if is_lost(entry):
            connection.status = STATUS_STALE
        unpin(entry)
        worker.counters.bytes_written += nbytes
    connection.left -= nbytes
    return nbytes


cdef void end_write(Worker *worker, Connection *connection) noexcept nogil:
    cdef uint64_t detail = 0
    cdef Entry *entry
    if connection.status == STATUS_OUT_OF_BOUNDS:
        entry = pin(worker.shared.entries, worker.shared.capacity, connection.request.handle, connection.session,
                    connection.request.generation)
        if entry != NULL:
            detail = entry.nbytes
            unpin(entry)
    if connection.watched:
        wake_written(worker, connection)
    connection.writing = False
    span_clear(&connection.span)
    owe(connection, &connection.request, connection.status, detail)


cdef int64_t consume(Worker *worker, Connection *connection, const uint8_t *data, uint64_t nbytes) noexcept nogil:
    """Deal with as much of the input as can be; return the bytes used, -1 to drop the connection."""
    cdef uint64_t used = 0, need
    cdef Request request
    connection.stalled = False
    while True:
        if connection.writing:
            used += take_payload(worker, connection, data + used, nbytes - used)
            if connection.left:
                return used
            end_write(worker, connection)
        if nbytes - used >= sizeof(request.magic):  # enough to know a client of another protocol, before it leaves
            memcpy(&request.magic, data + used, sizeof(request.magic))
            if request.magic != WIRE_MAGIC:
                report(worker.shared, EVENT_GARBAGE, connection.peer, request.magic)
                return DROP
        if nbytes - used < sizeof(Request):
            return used
        memcpy(&request, data + used, sizeof(Request))
        if not OP_HELLO <= request.operation <= OP_COMPARE_SWAP:
            report(worker.shared, EVENT_DISORDER, connection.peer, request.operation)
            return DROP
        if worker.budget <= 0:
            connection.stalled = True
            return used
        worker.budget -= REQUEST_BYTES
        if connection.owed == MOST_REPLIES or (connection.reads and changes_memory(request.operation)):
            if flush(worker, connection) == DROP:
                return DROP
            if connection.owed == MOST_REPLIES or (connection.reads and changes_memory(request.operation)):
                connection.stalled = True
                return used
        if not connection.known or request.operation == OP_HELLO:
            if greet(worker, connection, &request) == DROP:
                return DROP
            used += sizeof(Request)
            continue
        need = sizeof(Request)
        if request.operation in (OP_READV, OP_WRITEV):
            if request.operand > MOST_PARTS:
                report(worker.shared, EVENT_DISORDER, connection.peer, request.operation)
                return DROP
            need += request.operand * sizeof(Part)
            if nbytes - used < need:
                return used
        if execute(worker, connection, &request, data + used + sizeof(Request)) == DROP:
            return DROP
        used += need


cdef int keep_rest(Connection *connection, const uint8_t *data, size_t nbytes) noexcept nogil:
    """Keep input that has to wait: the beginning of a request, or requests of a stalled connection."""
    cdef uint8_t *spill = NULL
    if nbytes:
        spill = <uint8_t *> malloc(nbytes)
        if spill == NULL:
            return DROP
        memcpy(spill, data, nbytes)
    free(connection.spill)
    connection.spill = spill
    connection.spilled = nbytes
    return KEEP


cdef void unspill(Worker *worker, Connection *connection) noexcept nogil:
    if connection.spilled:
        memcpy(worker.stage, connection.spill, connection.spilled)


cdef int64_t receive(Worker *worker, Connection *connection, bint *drained) noexcept nogil:
    """Receive behind what was kept, a payload straight into the slab; return the bytes in the stage, -1 to drop."""
    cdef iovec pieces[DIRECT_PIECES + 1]
    cdef msghdr message
    cdef Entry *entry = NULL
    cdef Span *span = &connection.span
    cdef uint64_t direct = 0, offset
    cdef int count = 0, i
    cdef uint32_t index = span.index
    cdef ssize_t got
    if connection.writing and connection.spilled == 0:
        entry = pin_target(worker, connection)
    if entry != NULL:
        while count < DIRECT_PIECES and index < span.count and direct < <uint64_t> worker.budget:
            offset = span.done if index == span.index else 0
            pieces[count].iov_base = entry.base + span.parts[index].offset + offset
            pieces[count].iov_len = span.parts[index].length - offset
            if pieces[count].iov_len > worker.budget - direct:
                pieces[count].iov_len = worker.budget - direct
            direct += pieces[count].iov_len
            count += 1
            index += 1
    unspill(worker, connection)
    pieces[count].iov_base = worker.stage + connection.spilled
    # Behind parts that are not all of the payload comes payload, not a request: nothing may be staged then.
    pieces[count].iov_len = STAGE_BYTES - connection.spilled if entry == NULL or direct == connection.left else 0
    memset(&message, 0, sizeof(message))
    message.msg_iov = pieces
    message.msg_iovlen = count + 1
    got = receive_through(connection.fd, connection.cipher, &message, MSG_DONTWAIT)
    if got < 0 and errno == EFAULT:     # the slab's file was cut short
        for i in range(count):
            touch(pieces[i].iov_base, pieces[i].iov_len)
        got = receive_through(connection.fd, connection.cipher, &message, MSG_DONTWAIT)
    if entry != NULL:
        if is_lost(entry):
            connection.status = STATUS_STALE
        unpin(entry)
    if got <= 0:
        drained[0] = True
        if got < 0 and errno in (EAGAIN, EINTR):
            return connection.spilled
        return DROP
    worker.budget -= got
    if connection.cipher != NULL:
        drained[0] = connection.cipher.drained
    else:
        drained[0] = <uint64_t> got < direct + pieces[count].iov_len
    if entry != NULL:
        offset = got if <uint64_t> got < direct else direct
        span_advance(span, offset)
        connection.left -= offset
        worker.counters.bytes_written += offset
        got -= offset
    return connection.spilled + got


cdef int look_at_first(Worker *worker, Connection *connection) noexcept nogil:
    """Encrypt the connection if its first byte asks for that; KEEP if none has come, 1 to go on."""
    cdef uint8_t first
    cdef ssize_t got = recv(connection.fd, &first, 1, MSG_DONTWAIT | MSG_PEEK)
    if got <= 0:
        return KEEP if got < 0 and errno in (EAGAIN, EINTR) else DROP
    if first == TLS_HANDSHAKE:
        connection.cipher = worker.shared.accept(worker.shared.keys, connection.fd)
        if connection.cipher == NULL:
            return DROP
    return 1


cdef void report_stranger(Worker *worker, Connection *connection) noexcept nogil:
    """Say why a connection ended before its hello."""
    if connection.cipher != NULL and connection.cipher.failure:
        report(worker.shared, EVENT_HANDSHAKE, connection.peer, connection.cipher.failure)
    elif connection.spilled:
        report(worker.shared, EVENT_CUT_SHORT, connection.peer, connection.spilled)


cdef int serve(Worker *worker, Connection *connection) noexcept nogil:
    """Do what the connection is ready for; DROP if it has ended."""
    cdef int64_t filled, used
    cdef bint drained = False
    cdef int verdict
    connection.again = False
    if worker.shared.accept != NULL and not connection.known and connection.cipher == NULL and not connection.spilled:
        verdict = look_at_first(worker, connection)
        if verdict != 1:
            return verdict
    if (connection.owed or is_unsent(connection)) and flush(worker, connection) == DROP:
        return DROP
    for _ in range(MOST_ROUNDS):
        if connection.stalled and connection.blocked:
            return KEEP
        if worker.budget <= 0:
            break
        if connection.stalled:
            filled = connection.spilled
            unspill(worker, connection)
        else:
            filled = receive(worker, connection, &drained)
        if filled < 0:
            if not connection.known:
                report_stranger(worker, connection)
            return DROP
        used = consume(worker, connection, worker.stage, filled)
        if used < 0 or keep_rest(connection, worker.stage + used, filled - used) == DROP:
            return DROP
        if connection.owed and not connection.blocked and flush(worker, connection) == DROP:
            return DROP
        if drained and not (connection.stalled and not connection.blocked):
            return KEEP
    connection.again = connection.cipher != NULL
    return KEEP
