# What can be done to a slab behind a data plane, and how it went. The numbers are those of the tcp wire.
from libc.stdint cimport uint8_t, uint64_t

cdef enum Code:
    OP_HELLO = 1                # handle: session slot; reserved: version; generation..operand: the session's secret
    OP_READ = 2                 # length bytes at offset
    OP_WRITE = 3                # length bytes at offset, which follow the header
    OP_READV = 4                # operand parts follow the header; length bytes in all come back
    OP_WRITEV = 5               # operand parts follow the header, then their length bytes in all
    OP_LOAD = 6                 # the word at offset comes back in detail
    OP_STORE = 7                # the word at offset becomes operand
    OP_FETCH_ADD = 8            # operand is added to the word at offset; the old value comes back in detail
    OP_COMPARE_SWAP = 9         # the word at offset becomes operand if it is length; the old value comes back
    OP_LAST = 9

cdef enum Status:
    STATUS_OK = 0
    STATUS_STALE = 1            # the handle is not (or no longer) this session's, or of another generation
    STATUS_OUT_OF_BOUNDS = 2    # detail: the slab's size in bytes
    STATUS_READ_ONLY = 3
    STATUS_INVALID = 4          # misaligned word, or parts that do not add up
    STATUS_REFUSED = 5          # hello: unknown session or wrong secret
    STATUS_VERSION = 6          # hello: detail is the version that the server speaks
    STATUS_SESSION_FULL = 7     # hello: the session has as many connections as one may, which is detail
    STATUS_TENANT_FULL = 8      # hello: its tenant has detail connections, and leaves hardly more to others
    STATUS_SERVER_FULL = 9      # hello: the server has as many as it may, which is detail

cdef struct Part:               # 16 bytes
    uint64_t offset
    uint64_t length

cdef struct Operation:          # one operation of a caller, and its outcome
    uint8_t code
    uint64_t offset             # of the word, or of the first part
    uint64_t length             # bytes of all parts; what a word is expected to be
    uint64_t operand            # a word's new value or addend
    const Py_buffer *views      # the caller's buffers, one a part, or one for all of them
    uint8_t *whole              # NULL, or where the bytes of all parts are, which then have one length
    const Part *parts           # where they go in the slab
    Py_ssize_t count
    uint8_t status              # out: a Status
    uint64_t detail             # out: a word's old value, or the limit that was met


cdef inline uint8_t *bytes_of(const Operation *operation, Py_ssize_t i) noexcept nogil:
    """Return where the bytes of a part are."""
    if operation.whole != NULL:
        return operation.whole + i * operation.parts[i].length
    return <uint8_t *> operation.views[i].buf


cdef inline const Py_buffer *view_of(const Operation *operation, Py_ssize_t i) noexcept nogil:
    """Return the buffer that the bytes of a part are in."""
    return operation.views if operation.whole != NULL else operation.views + i
