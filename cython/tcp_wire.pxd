# The tcp data plane's wire format. Little-endian, naturally aligned, fixed size. See docs/protocol.md.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    WIRE_MAGIC = 0xFA47         # first two bytes of every header
    WIRE_VERSION = 1
    MOST_PARTS = 4096           # parts in one READV or WRITEV
    SECRET_BYTES = 32

cdef enum Operation:
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

cdef struct Request:            # 48 bytes
    uint16_t magic
    uint8_t operation
    uint8_t reserved
    uint32_t handle
    uint64_t id                 # comes back in the answer
    uint64_t generation
    uint64_t offset             # bytes from the slab's start
    uint64_t length             # bytes
    uint64_t operand

cdef struct Answer:             # 32 bytes, then length bytes
    uint16_t magic
    uint8_t operation
    uint8_t status
    uint32_t handle
    uint64_t id
    uint64_t length
    uint64_t detail

cdef struct Part:               # 16 bytes
    uint64_t offset
    uint64_t length
