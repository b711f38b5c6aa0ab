"""A slab behind a data plane, for synchronous callers: what every such transport shares.

A transport says how one attempt is made (``attempt``) and what a renewed attachment is (``adopt``). The checks before
it, the deadline around it, and the way back after a lost connection or a restarted server are here.
"""

from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdlib cimport free, malloc

import time

from farpool.native.checks cimport (
    as_addend,
    as_offset,
    as_seconds,
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
    raise_wrong_domain,
    successor,
)
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.equal_parts cimport EqualParts, take_parts
from farpool.native.fork cimport forks
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
    STATUS_OUT_OF_BOUNDS,
    STATUS_READ_ONLY,
    STATUS_STALE,
)

from farpool.protocol.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    NotMappable,
    ProtocolError,
    ServerLost,
    StaleSlab,
)

cdef enum:
    BACKOFF_NS = 10000000       # rest before the third attempt, and more before each later one


cdef class RemoteRegion:
    """A slab behind a data plane, for synchronous callers; see the stub for the contract."""

    def __cinit__(self, *arguments, **named):
        self.born = forks

    cdef int attempt(self, Operation *operation, int64_t deadline) except -3:
        """Try the operation once; the buffers and parts stay as they are."""
        return LOST

    cdef int adopt(self, object params) except -1:
        """Take the parameters of a renewed attachment."""
        return 0

    cdef int check(self, Py_ssize_t offset, Py_ssize_t nbytes, bint writes) except -1:
        if self.closed:
            return raise_closed(self.label)
        if self.born != forks:
            return raise_forked()
        if outside(offset, nbytes, self.nbytes):
            return raise_out_of_bounds(offset, nbytes, self.nbytes, self.label)
        if writes and not self.writable:
            return raise_read_only(self.label)
        return 0

    cdef int check_atomics(self) except -1:
        """Raise ``WrongAtomicDomain`` if the slab's words belong to others' atomics."""
        if not self.atomics:
            raise_wrong_domain(self.label, "cpu" if self.domain == "rdma" else "rdma", self.domain)
        return 0

    cdef int64_t until(self, object timeout) except -1:
        """Return when an operation with this *timeout* ends."""
        return now_ns() + (self.timeout if timeout is None else to_ns(as_seconds(timeout)))

    cdef double left(self, int64_t deadline) except -1:
        """Return the seconds until *deadline*: a moment if it has passed, which whoever takes over finds out."""
        return max(deadline - now_ns(), 1000) / 1e9

    cdef object elsewhere(self, object stale, int64_t deadline):
        """Return the region of the memory that has replaced ours; raise *stale* if there is none."""
        return successor(self.follow, stale, self.left(deadline))

    cdef int operate(self, Operation *operation, int64_t deadline) except -1:
        """Carry one operation to its end: an answer, or an error by the deadline."""
        cdef bint again = operation.code in (OP_READ, OP_READV, OP_LOAD)
        cdef int attempts = 0, outcome
        while True:
            attempts += 1
            try:
                outcome = self.attempt(operation, deadline)
            except (ServerLost, AuthenticationFailed) as error:
                if error.details.get("certificate"):
                    raise       # the next attempt would find the same one
                # No connection was to be had, and so nothing was sent.
                self.renew_until(deadline, attempts)
                continue
            if outcome == ANSWERED:
                if operation.status == STATUS_OK:
                    return 0
                if operation.status != STATUS_STALE or attempts > 1:
                    self.judge(operation.offset, operation.length, operation.status, operation.detail)
            elif outcome == LATE:
                raise DeadlineExceeded(
                    f"slab {self.label}: no answer from the server within the deadline; "
                    + ("raise timeout=" if again else "whether the change took effect is unknown")
                )
            elif not again:
                raise ServerLost(
                    f"slab {self.label}: the connection was lost; whether the change took effect is unknown"
                )
            self.renew_until(deadline, attempts)

    cdef int judge(self, uint64_t offset, uint64_t nbytes, uint8_t status, uint64_t detail) except -1:
        """Raise what the server's answer means."""
        if status == STATUS_STALE:
            raise_stale(self.label)
        if status == STATUS_OUT_OF_BOUNDS:
            raise_out_of_bounds(offset, nbytes, detail, self.label)
        if status == STATUS_READ_ONLY:
            raise_read_only(self.label)
        raise ProtocolError(f"slab {self.label}: the server refused a request with status {status}; please report it")

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

    def refresh(self, double seconds):
        """Attach again through the control plane, within *seconds*."""
        self.check(0, 0, False)
        params = self.renew(seconds)
        if self.closed:
            raise_closed(self.label)
        self.adopt(params)

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

    cdef int single(self, uint8_t code, const Py_buffer *view, Py_ssize_t offset, int64_t deadline) except -1:
        """Move one buffer."""
        cdef Operation operation
        cdef Part part
        self.check(offset, view.len, code == OP_WRITE)
        part.offset = offset
        part.length = view.len
        operation.code = code
        operation.offset = offset
        operation.length = view.len
        operation.operand = 0
        operation.whole = NULL
        operation.views = view
        operation.parts = &part
        operation.count = 1
        return self.operate(&operation, deadline)

    cdef int fill(self, bytes fresh, Py_ssize_t offset, int64_t deadline) except -1:
        """Read into bytes that nobody else has seen yet: we may fill them."""
        cdef Py_buffer view
        get_source(fresh, &view)
        try:
            return self.single(OP_READ, &view, offset, deadline)
        finally:
            PyBuffer_Release(&view)

    def read_into(self, buffer, offset=0, timeout=None):
        """Fill *buffer* from the slab and return the bytes read."""
        cdef int64_t deadline = self.until(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_buffer view
        get_target(buffer, &view)
        try:
            self.single(OP_READ, &view, start, deadline)
            return view.len
        except StaleSlab as error:
            stale = error
        finally:
            PyBuffer_Release(&view)
        return self.elsewhere(stale, deadline).read_into(buffer, start, self.left(deadline))

    def read(self, nbytes, offset=0, timeout=None):
        """Return new bytes from the slab."""
        cdef int64_t deadline = self.until(timeout)
        cdef Py_ssize_t start = as_offset(offset), length = as_offset(nbytes)
        cdef bytes result
        try:
            self.check(start, length, False)
            result = PyBytes_FromStringAndSize(NULL, length)
            self.fill(result, start, deadline)
            return result
        except StaleSlab as error:
            stale = error
        return self.elsewhere(stale, deadline).read(length, start, self.left(deadline))

    def write(self, buffer, offset=0, timeout=None):
        """Copy *buffer* into the slab and return the bytes written."""
        cdef int64_t deadline = self.until(timeout)
        cdef Py_ssize_t start = as_offset(offset)
        cdef Py_buffer view
        get_source(buffer, &view)
        try:
            self.single(OP_WRITE, &view, start, deadline)
            return view.len
        except StaleSlab as error:
            stale = error
        finally:
            PyBuffer_Release(&view)
        return self.elsewhere(stale, deadline).write(buffer, start, self.left(deadline))

    def readv(self, parts, timeout=None):
        """Fill many buffers in one batch; every range is checked before a byte moves. Return the bytes read."""
        cdef int64_t deadline = self.until(timeout)
        return self.batch(list(parts), False, deadline)

    def writev(self, parts, timeout=None):
        """Write many buffers in one batch; every range is checked before a byte moves. Return the bytes written."""
        cdef int64_t deadline = self.until(timeout)
        return self.batch(list(parts), True, deadline)

    cdef object batch(self, list parts, bint writes, int64_t deadline):
        try:
            return self.move(parts, writes, deadline)
        except StaleSlab as error:
            stale = error
        region = self.elsewhere(stale, deadline)
        return region.writev(parts, self.left(deadline)) if writes else region.readv(parts, self.left(deadline))

    cdef object move(self, object parts, bint writes, int64_t deadline):
        cdef Py_ssize_t count = len(parts), held = 0, i, total = 0, start
        cdef Py_buffer *views = <Py_buffer *> malloc((count or 1) * sizeof(Py_buffer))
        cdef Part *where = <Part *> malloc((count or 1) * sizeof(Part))
        cdef Operation operation
        try:
            if views == NULL or where == NULL:
                raise MemoryError
            self.check(0, 0, writes)
            for offset, buffer in parts:
                if writes:
                    get_source(buffer, &views[held])
                else:
                    get_target(buffer, &views[held])
                held += 1
                start = as_offset(offset)
                if outside(start, views[held - 1].len, self.nbytes):
                    raise_out_of_bounds(start, views[held - 1].len, self.nbytes, self.label)
                where[held - 1].offset = start
                where[held - 1].length = views[held - 1].len
            operation.code = OP_WRITEV if writes else OP_READV
            operation.operand = 0
            operation.whole = NULL
            for i in range(0, count, self.most_parts):
                operation.views = views + i
                operation.parts = where + i
                operation.count = min(self.most_parts, count - i)
                operation.offset = where[i].offset
                operation.length = length_of(&operation)
                self.operate(&operation, deadline)
                total += operation.length
            return total
        finally:
            for i in range(held):
                PyBuffer_Release(&views[i])
            free(views)
            free(where)

    def gather(self, offsets, nbytes, out, timeout=None):
        """Fill *out* with the *nbytes* at each of *offsets*; return the bytes read."""
        cdef int64_t deadline = self.until(timeout)
        try:
            return self.move_equal(self.describe(offsets, nbytes, out, True), deadline)
        except StaleSlab as error:
            stale = error
        return self.elsewhere(stale, deadline).gather(offsets, nbytes, out, self.left(deadline))

    def scatter(self, offsets, nbytes, source, timeout=None):
        """Write *source* to the *nbytes* at each of *offsets*; return the bytes written."""
        cdef int64_t deadline = self.until(timeout)
        try:
            return self.move_equal(self.describe(offsets, nbytes, source, False), deadline)
        except StaleSlab as error:
            stale = error
        return self.elsewhere(stale, deadline).scatter(offsets, nbytes, source, self.left(deadline))

    cpdef EqualParts describe(self, offsets, nbytes, buffer, bint inward):
        """Return parts of one size, all of which were found to be within the slab."""
        cdef EqualParts parts
        self.check(0, 0, not inward)
        parts = take_parts(offsets, nbytes, buffer, inward)
        parts.check(self.nbytes, self.label)
        return parts

    cdef object move_equal(self, EqualParts parts, int64_t deadline):
        cdef Py_ssize_t count = parts.count if parts.part_nbytes else 0, i
        cdef Py_ssize_t most = max(self.most_parts, self.most_equal_parts)
        cdef Part *where = <Part *> malloc(min(count or 1, most) * sizeof(Part))
        cdef Operation operation
        nbytes = parts.nbytes
        try:
            if where == NULL:
                raise MemoryError
            operation.code = OP_READV if parts.inward else OP_WRITEV
            operation.operand = 0
            operation.views = &parts.view
            operation.parts = where
            for i in range(0, count, most):
                operation.count = min(most, count - i)
                operation.whole = parts.data + i * parts.part_nbytes
                parts.describe(where, i, operation.count)
                operation.offset = where[0].offset
                operation.length = operation.count * parts.part_nbytes
                self.operate(&operation, deadline)
            return nbytes
        finally:
            parts.release()     # now: whoever holds an error holds no buffer
            free(where)

    cdef uint64_t word(self, uint8_t code, object offset, uint64_t length, uint64_t operand,
                       int64_t deadline) except? 0:
        """Do one operation on an aligned word; return its old value."""
        cdef Py_ssize_t start = as_offset(offset)
        cdef Operation operation
        self.check(start, 8, code != OP_LOAD)
        if start & 7:
            raise_misaligned(start, self.label)
        if code in (OP_FETCH_ADD, OP_COMPARE_SWAP):
            self.check_atomics()
        operation.code = code
        operation.offset = start
        operation.length = length
        operation.operand = operand
        operation.whole = NULL
        operation.count = 0
        self.operate(&operation, deadline)
        return operation.detail

    def load(self, offset, timeout=None):
        """Return the aligned unsigned 8-byte little-endian word at *offset*."""
        cdef int64_t deadline = self.until(timeout)
        try:
            return self.word(OP_LOAD, offset, 0, 0, deadline)
        except StaleSlab as error:
            stale = error
        return self.elsewhere(stale, deadline).load(offset, self.left(deadline))

    def store(self, offset, value, timeout=None):
        """Set the aligned word at *offset*; other readers see the old or the new value, never a mix."""
        cdef int64_t deadline = self.until(timeout)
        try:
            self.word(OP_STORE, offset, 0, as_word(value), deadline)
            return
        except StaleSlab as error:
            stale = error
        self.elsewhere(stale, deadline).store(offset, value, self.left(deadline))

    def fetch_add(self, offset, value, timeout=None):
        """Add *value* (modulo 2**64) to the aligned word at *offset* atomically; return the old value."""
        cdef int64_t deadline = self.until(timeout)
        try:
            return self.word(OP_FETCH_ADD, offset, 0, as_addend(value), deadline)
        except StaleSlab as error:
            stale = error
        return self.elsewhere(stale, deadline).fetch_add(offset, value, self.left(deadline))

    def compare_swap(self, offset, expected, new, timeout=None):
        """Set the aligned word at *offset* to *new* if it is *expected*, atomically; return the old value."""
        cdef int64_t deadline = self.until(timeout)
        try:
            return self.word(OP_COMPARE_SWAP, offset, as_word(expected), as_word(new), deadline)
        except StaleSlab as error:
            stale = error
        return self.elsewhere(stale, deadline).compare_swap(offset, expected, new, self.left(deadline))

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
        """Raise ``NotMappable``: these bytes are not in this process's reach."""
        self.check_span(offset, nbytes)
        raise NotMappable(
            f"slab {self.label} is attached over the network and has no local memory; use read_into, "
            "or connect with transport=\"cxl\" on the server's host"
        )

    def close(self):
        """Let go of the slab. A second call does nothing; later operations raise ``StaleSlab``."""
        if self.closed:
            return
        self.closed = True
        if self.on_close is not None and self.born == forks:
            self.on_close()


cdef uint64_t length_of(const Operation *operation) noexcept nogil:
    cdef uint64_t total = 0
    cdef Py_ssize_t i
    for i in range(operation.count):
        total += operation.parts[i].length
    return total
