# The tcp data plane's wire format. Little-endian, naturally aligned, fixed size. See docs/protocol.md.
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    WIRE_MAGIC = 0xFA47         # first two bytes of every header
    WIRE_VERSION = 1
    MOST_PARTS = 4096           # parts in one READV or WRITEV
    SECRET_BYTES = 32

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
