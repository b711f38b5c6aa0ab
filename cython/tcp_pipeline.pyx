"""A slab behind the server's tcp data plane, for an event loop: many requests in flight over one connection.

Everything runs on the loop's thread, with the GIL. Requests of one turn of the loop leave in one system call; answers
come in order, their bytes straight into the caller's buffer. One timer serves all deadlines.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove, memset

from collections import deque

from farpool.native.checks cimport as_addend, as_offset, as_word, raise_misaligned
from farpool.native.cipher cimport Cipher, Encryption, receive_through, send_through
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.equal_parts cimport EqualParts
from farpool.native.libsocket cimport (
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    MSG_PEEK,
    close_fd,
    iovec,
    msghdr,
    recv,
)
from farpool.native.operation cimport (
    OP_COMPARE_SWAP,
    OP_FETCH_ADD,
    OP_LOAD,
    OP_READ,
    OP_READV,
    OP_STORE,
    OP_WRITE,
    OP_WRITEV,
    STATUS_OK,
)
from farpool.native.stream cimport advance
from farpool.native.tcp_pending cimport Pending
from farpool.native.tcp_region cimport TcpRegion
from farpool.native.tcp_wire cimport MOST_PARTS, WIRE_MAGIC, Answer, Request

from farpool.protocol.errors import DeadlineExceeded, InvalidArgument, ServerLost

cdef enum:
    STAGE = 65536           # bytes received at most beside those that go straight to a buffer
    MOST_PIECES = 256       # iovecs in one system call
    IDLE_NS = 20000000      # a connection that rested longer is looked at before it is used


cdef class TcpPipeline:
    """One data connection of an event loop; see the stub for the contract."""

    cdef int fd
    cdef uint64_t version           # of the peer's credentials that it was opened with
    cdef Encryption encryption      # keeps the cipher alive; None in clear
    cdef Cipher *cipher             # NULL: in clear
    cdef object loop
    cdef object unsent              # deque of Pending
    cdef object unanswered          # deque of Pending
    cdef Pending incoming           # whose payload is coming in
    cdef uint64_t payload           # bytes of it that have not come
    cdef uint8_t *stage
    cdef size_t staged
    cdef bint sending               # a send is scheduled, or the socket is watched for room
    cdef bint watched
    cdef object timer
    cdef int64_t timer_at
    cdef int64_t heard              # when the last byte came
    cdef object __weakref__

    def __init__(self, int fd, uint64_t version, loop, Encryption encryption=None):
        self.fd = fd
        self.version = version
        self.encryption = encryption
        self.cipher = encryption.cipher if encryption is not None else NULL
        self.loop = loop
        self.unsent = deque()
        self.unanswered = deque()
        self.stage = <uint8_t *> malloc(STAGE)
        if self.stage == NULL:
            raise MemoryError
        self.heard = now_ns()
        loop.add_reader(fd, self.on_readable)

    def __dealloc__(self):
        if self.fd >= 0:
            close_fd(self.fd)
        free(self.stage)

    @property
    def closed(self):
        """Whether the connection has ended."""
        return self.fd < 0

    def usable(self):
        """Tell whether a request may be sent: a connection that rested is looked at, since its end was not seen yet."""
        cdef char byte
        cdef ssize_t got
        if self.fd < 0:
            return False
        if self.pending or now_ns() - self.heard < IDLE_NS:
            return True
        if self.cipher != NULL:
            got = self.cipher.peek(self.cipher)
        else:
            got = recv(self.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK)
        return got < 0 and errno == EAGAIN

    @property
    def pending(self):
        """Requests that have no answer yet, cancelled ones included."""
        return len(self.unanswered) + len(self.unsent) + (self.incoming is not None)

    cdef object submit(self, Pending pending, uint8_t operation, bint vector, double deadline):
        """Queue a request; it leaves with all others of this turn of the loop."""
        if self.fd < 0:
            raise ServerLost("the data connection has ended")
        pending.request.magic = WIRE_MAGIC
        pending.request.operation = operation
        pending.request.handle = pending.region.handle
        pending.request.generation = pending.region.generation
        pending.deadline = to_ns(deadline)
        pending.future = self.loop.create_future()
        pending.aim_out(vector)
        self.unsent.append(pending)
        if not self.sending:
            self.sending = True
            self.loop.call_soon(self.on_writable)
        if self.timer is None or pending.deadline < self.timer_at:
            self.set_timer(pending.deadline)
        return pending.future

    cdef Pending pend(self, TcpRegion region, bint inward, bint writes):
        cdef Pending pending = Pending.__new__(Pending)
        region.check(0, 0, writes)
        if region.version != self.version:
            raise ServerLost("the server has started anew")     # as in TcpRegion: attach again
        pending.region = region
        pending.inward = inward
        memset(&pending.request, 0, sizeof(Request))
        return pending

    cdef object transfer(self, TcpRegion region, list parts, uint8_t operation, double deadline):
        cdef bint inward = operation in (OP_READ, OP_READV)
        cdef bint vector = operation in (OP_READV, OP_WRITEV)
        cdef Pending pending = self.pend(region, inward, not inward)
        if len(parts) > MOST_PARTS:
            raise InvalidArgument(f"one request takes at most {MOST_PARTS} parts, not {len(parts)}")
        pending.hold(parts, vector)
        region.check(0, 0, not inward)
        return self.submit(pending, operation, vector, deadline)

    def read_into(self, TcpRegion region not None, buffer, offset, double deadline):
        """Fill *buffer* from the slab; the future's result is the bytes read."""
        return self.transfer(region, [(offset, buffer)], OP_READ, deadline)

    def write(self, TcpRegion region not None, buffer, offset, double deadline):
        """Copy *buffer* into the slab; the future's result is the bytes written."""
        return self.transfer(region, [(offset, buffer)], OP_WRITE, deadline)

    def readv(self, TcpRegion region not None, parts, double deadline):
        """Fill many buffers in one batch; the future's result is the bytes read."""
        return self.transfer(region, list(parts), OP_READV, deadline)

    def writev(self, TcpRegion region not None, parts, double deadline):
        """Write many buffers in one batch; the future's result is the bytes written."""
        return self.transfer(region, list(parts), OP_WRITEV, deadline)

    def move_parts(self, TcpRegion region not None, EqualParts parts not None, Py_ssize_t first, double deadline):
        """Move the parts from number *first* on that one request takes; the future's result is their bytes."""
        cdef Pending pending = self.pend(region, parts.inward, not parts.inward)
        pending.hold_equal(parts, first, min(<Py_ssize_t> MOST_PARTS, parts.count - first))
        return self.submit(pending, OP_READV if parts.inward else OP_WRITEV, True, deadline)

    cdef object word(self, TcpRegion region, uint8_t operation, object offset, uint64_t length, uint64_t operand,
                     double deadline):
        cdef Py_ssize_t start = as_offset(offset)
        cdef Pending pending = self.pend(region, False, operation != OP_LOAD)
        region.check(start, 8, operation != OP_LOAD)
        if start & 7:
            raise_misaligned(start, region.label)
        if operation in (OP_FETCH_ADD, OP_COMPARE_SWAP):
            region.check_atomics()
        pending.pieces = <iovec *> malloc(sizeof(iovec))
        if pending.pieces == NULL:
            raise MemoryError
        pending.request.offset = start
        pending.request.length = length
        pending.request.operand = operand
        return self.submit(pending, operation, False, deadline)

    def load(self, TcpRegion region not None, offset, double deadline):
        """Read the aligned word at *offset*."""
        return self.word(region, OP_LOAD, offset, 0, 0, deadline)

    def store(self, TcpRegion region not None, offset, value, double deadline):
        """Set the aligned word at *offset*; the future's result is 0."""
        return self.word(region, OP_STORE, offset, 0, as_word(value), deadline)

    def fetch_add(self, TcpRegion region not None, offset, value, double deadline):
        """Add *value* to the aligned word at *offset*; the future's result is the old value."""
        return self.word(region, OP_FETCH_ADD, offset, 0, as_addend(value), deadline)

    def compare_swap(self, TcpRegion region not None, offset, expected, new, double deadline):
        """Swap the aligned word at *offset* if it is *expected*; the future's result is the old value."""
        return self.word(region, OP_COMPARE_SWAP, offset, as_word(expected), as_word(new), deadline)

    # Sending ---------------------------------------------------------------------------------------------------

    def on_writable(self):
        """Send as much as the socket takes."""
        cdef iovec pieces[MOST_PIECES]
        cdef msghdr message
        cdef ssize_t sent
        cdef size_t total
        if self.fd < 0:
            return
        memset(&message, 0, sizeof(message))
        message.msg_iov = pieces
        while self.unsent:
            total = self.collect(pieces, &message)
            if total == 0:
                continue
            sent = send_through(self.fd, self.cipher, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0 and errno == EINTR:
                continue
            if sent < 0 and errno != EAGAIN:
                self.fail()
                return
            if sent > 0:
                self.retire(sent)
            if sent < <ssize_t> total:
                self.watch()
                return
        if self.cipher != NULL and self.cipher.push(self.cipher) != 0:
            if errno not in (EAGAIN, EINTR):
                self.fail()
            else:
                self.watch()
            return
        self.sending = False
        if self.watched:
            self.watched = False
            self.loop.remove_writer(self.fd)

    cdef object watch(self):
        """Go on sending once the socket has room."""
        self.sending = True
        if not self.watched:
            self.watched = True
            self.loop.add_writer(self.fd, self.on_writable)

    cdef size_t collect(self, iovec *pieces, msghdr *message):
        """Line up what one call can send, leaving out requests that were cancelled before they began."""
        cdef Pending pending
        cdef size_t total = 0
        cdef int count = 0, i
        while self.unsent:
            pending = self.unsent[0]
            if pending.begun or not pending.future.done():
                break
            self.unsent.popleft()
        for item in self.unsent:
            pending = item
            if pending.future.done() and not pending.begun:
                break
            for i in range(pending.pieces_left):
                if count == MOST_PIECES:
                    break
                pieces[count] = pending.left[i]
                total += pieces[count].iov_len
                count += 1
            if count == MOST_PIECES:
                break
        message.msg_iovlen = count
        return total

    cdef void retire(self, size_t sent):
        """Note what was sent; whole requests wait for their answers now."""
        cdef Pending pending
        cdef size_t here
        cdef int i
        while sent and self.unsent:
            pending = self.unsent[0]
            pending.begun = True
            here = 0
            for i in range(pending.pieces_left):
                here += pending.left[i].iov_len
            if sent < here:
                pending.pieces_left = advance(&pending.left, pending.pieces_left, sent)
                return
            sent -= here
            self.unsent.popleft()
            if not pending.inward:
                pending.release()
            self.unanswered.append(pending)

    # Receiving -------------------------------------------------------------------------------------------------

    def on_readable(self):
        """Receive once, and finish the requests that are answered."""
        cdef iovec pieces[MOST_PIECES]
        cdef msghdr message
        cdef ssize_t got
        cdef size_t direct = 0
        cdef int count = 0
        if self.fd < 0:
            return
        if self.incoming is not None and not self.incoming.future.done():
            while count < MOST_PIECES - 1 and count < self.incoming.pieces_left:
                pieces[count] = self.incoming.left[count]
                direct += pieces[count].iov_len
                count += 1
        pieces[count].iov_base = self.stage + self.staged
        # Behind buffers that are not the whole payload comes payload, not an answer: nothing may be staged then.
        pieces[count].iov_len = STAGE - self.staged if count == 0 or direct == self.payload else 0
        memset(&message, 0, sizeof(message))
        message.msg_iov = pieces
        message.msg_iovlen = count + 1
        got = receive_through(self.fd, self.cipher, &message, MSG_DONTWAIT)
        if got < 0 and errno in (EAGAIN, EINTR):
            return
        if got <= 0:
            self.fail()
            return
        self.heard = now_ns()
        if count:
            if <size_t> got < direct:
                direct = got
            self.incoming.pieces_left = advance(&self.incoming.left, self.incoming.pieces_left, direct)
            self.payload -= direct
            got -= direct
            if self.payload == 0:
                self.finish()
        self.staged += got
        self.parse()
        if self.cipher != NULL and not self.cipher.drained and self.fd >= 0:
            self.loop.call_soon(self.on_readable)   # the socket does not know of what the cipher has

    cdef object parse(self):
        """Deal with what is staged: answers, and the beginnings of payloads."""
        cdef size_t used = 0, here
        cdef Answer answer
        while True:
            if self.incoming is not None:
                here = self.staged - used
                if here > self.payload:
                    here = self.payload
                self.deliver(self.stage + used, here)
                used += here
                self.payload -= here
                if self.payload:
                    break
                self.finish()
            if self.staged - used < sizeof(Answer):
                break
            memcpy(&answer, self.stage + used, sizeof(Answer))
            used += sizeof(Answer)
            if not self.take(&answer):
                self.fail()
                return
        self.staged -= used
        memmove(self.stage, self.stage + used, self.staged)

    cdef void deliver(self, const uint8_t *data, size_t nbytes):
        """Copy staged bytes to the caller's buffers, unless nobody waits for them any more."""
        cdef size_t here
        if self.incoming.future.done():
            return
        while nbytes:
            here = self.incoming.left.iov_len
            if here > nbytes:
                here = nbytes
            memcpy(self.incoming.left.iov_base, data, here)
            self.incoming.pieces_left = advance(&self.incoming.left, self.incoming.pieces_left, here)
            data += here
            nbytes -= here

    cdef bint take(self, const Answer *answer) except -1:
        """Match an answer with the oldest request; False if the server does not keep to the protocol."""
        cdef Pending pending
        if not self.unanswered or answer.magic != WIRE_MAGIC:
            return False
        pending = self.unanswered.popleft()
        if answer.operation != pending.request.operation:
            return False
        if answer.status != STATUS_OK:
            if answer.length:
                return False
            self.refuse(pending, answer)
            return True
        if answer.length != (pending.request.length if pending.inward else 0):
            return False
        if pending.inward:
            pending.aim_in()
            self.incoming = pending
            self.payload = answer.length
        elif not pending.future.done():
            if pending.request.operation >= OP_LOAD:
                pending.future.set_result(answer.detail)
            else:
                pending.future.set_result(pending.request.length)
        return True

    cdef object refuse(self, Pending pending, const Answer *answer):
        pending.release()
        if pending.future.done():
            return
        try:
            pending.region.judge(pending.request.offset, pending.request.length, answer.status, answer.detail)
        except Exception as error:
            pending.future.set_exception(error)

    cdef object finish(self):
        """The payload is there."""
        cdef Pending pending = self.incoming
        self.incoming = None
        pending.release()
        if not pending.future.done():
            pending.future.set_result(pending.request.length)

    # Deadlines and the end -------------------------------------------------------------------------------------

    cdef object set_timer(self, int64_t at):
        if self.timer is not None:
            self.timer.cancel()
        self.timer_at = at
        self.timer = self.loop.call_later(max(0, at - now_ns()) / 1e9, self.on_timer)

    def on_timer(self):
        """Fail the requests whose deadline has passed; a connection on which nothing came meanwhile is given up."""
        cdef Pending pending
        cdef int64_t now = now_ns(), earliest = 0
        cdef bint dead = False, waiting = False
        self.timer = None
        for item in [*self.unsent, *self.unanswered, *([self.incoming] if self.incoming is not None else [])]:
            pending = item
            if pending.future.done():
                continue
            if pending.deadline > now:
                waiting = True
                if earliest == 0 or pending.deadline < earliest:
                    earliest = pending.deadline
                continue
            dead = True
            pending.future.set_exception(DeadlineExceeded(
                f"slab {pending.region.label}: no answer within the deadline; "
                + ("raise timeout=" if pending.inward else "whether a change took effect is unknown")
            ))
        if waiting:
            self.set_timer(earliest)
        elif dead:
            self.close()

    cdef object fail(self):
        """End the connection, and every request with it."""
        cdef list ended = [*self.unsent, *self.unanswered]
        cdef Pending pending
        cdef int fd = self.fd
        if self.incoming is not None:
            ended.append(self.incoming)
        self.fd = -1
        if fd >= 0:
            self.loop.remove_reader(fd)
            if self.watched:
                self.loop.remove_writer(fd)
            close_fd(fd)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.unsent.clear()
        self.unanswered.clear()
        self.incoming = None
        for item in ended:
            pending = item
            pending.release()
            if not pending.future.done():
                pending.future.set_exception(ServerLost(
                    f"slab {pending.region.label}: the data connection was lost"
                    + ("" if pending.inward or not pending.begun else "; whether the change took effect is unknown"),
                    begun=pending.begun,
                ))

    cpdef close(self):
        """Fail what is in flight with ``ServerLost`` and close the connection. Idempotent."""
        if self.fd >= 0:
            self.fail()
