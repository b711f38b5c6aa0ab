"""A slab whose attempts are made in Python: the checks, deadlines and ways back of ``RemoteRegion``, and no more.

It is for data planes whose library is Python. The buffers are lent as memory views for the length of one attempt.
"""

from libc.stdint cimport int64_t, uint64_t

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

from farpool.native.clock cimport to_ns
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
    STATUS_STALE,
    Operation,
    bytes_of,
    view_of,
)
from farpool.native.remote_region cimport ANSWERED, LATE, LOST, RemoteRegion

_CODES = {
    OP_READ: "read",
    OP_READV: "read",
    OP_WRITE: "write",
    OP_WRITEV: "write",
    OP_LOAD: "load",
    OP_STORE: "store",
    OP_FETCH_ADD: "fetch_add",
    OP_COMPARE_SWAP: "compare_swap",
}

DONE = ANSWERED
GONE = LOST
OVERDUE = LATE
REFUSED = 1

cdef char nothing = 0       # where a view without bytes points


cdef class DelegatingRegion(RemoteRegion):
    """One attached slab, reached by the ``execute`` of a subclass; see the stub for the contract."""

    cdef readonly object params

    def __init__(self, params, *, uint64_t generation, Py_ssize_t nbytes, bint writable, bint atomics,
                 str domain not None, str label not None, double timeout, Py_ssize_t most_parts, renew):
        self.params = params
        self.generation = generation
        self.nbytes = nbytes
        self.writable = writable
        self.atomics = atomics
        self.domain = domain
        self.label = label
        self.timeout = to_ns(timeout)
        self.most_parts = most_parts
        self.renew = renew

    cdef int adopt(self, object params) except -1:
        self.params = params
        return 0

    cdef int attempt(self, Operation *operation, int64_t deadline) except -3:
        """Lend the buffers to one call of ``execute``."""
        cdef list parts = []
        try:
            if operation.code < OP_LOAD:
                lend(parts, operation)
            outcome, operation.detail = self.execute(
                _CODES[operation.code], operation.offset, operation.length, operation.operand, parts, deadline / 1e9
            )
        finally:
            for _, view, _ in parts:
                view.release()
        operation.status = STATUS_STALE if outcome == REFUSED else STATUS_OK
        return ANSWERED if outcome == REFUSED else outcome

    def execute(self, code, offset, length, operand, parts, deadline):
        """Try one operation once."""
        return GONE, 0


cdef int lend(list parts, const Operation *operation) except -1:
    """Add a view of each buffer; what is read into may be a fresh ``bytes``, which shows itself read-only."""
    cdef int access = PyBUF_WRITE if operation.code in (OP_READ, OP_READV) else PyBUF_READ
    cdef Py_ssize_t i, nbytes
    for i in range(operation.count):
        nbytes = operation.parts[i].length
        view = PyMemoryView_FromMemory(<char *> bytes_of(operation, i) if nbytes else &nothing, nbytes, access)
        parts.append((operation.parts[i].offset, view, <object> view_of(operation, i).obj))
    return 0
