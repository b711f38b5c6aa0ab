# cython: boundscheck=False, wraparound=False
"""Cache lines of memory that other hosts share without coherence: written back, dropped, in the right order.

The GIL is released around the work on a buffer. On x86-64 the instruction is chosen once, by CPUID.
"""

from farpool.native.libcacheline cimport (
    ARM_DC,
    CLFLUSH,
    CLFLUSHOPT,
    CLWB,
    NO_INSTRUCTION,
    best_instruction,
    cpu_line_bytes,
    full_fence,
    line_instruction,
)

from farpool.protocol.errors import OutOfBounds, TransportUnavailable

cdef size_t LINE = cpu_line_bytes()
cdef int CLEAN = best_instruction(CLWB)             # writes a line back
cdef int EVICT = best_instruction(CLFLUSHOPT)       # writes a line back and drops it
if CLEAN == ARM_DC:
    CLEAN, EVICT = CLWB, CLFLUSH                    # what libcacheline makes "dc cvac" and "dc civac" of

cdef dict NAMES = {CLWB: "clwb", CLFLUSHOPT: "clflushopt", CLFLUSH: "clflush"}


cdef Lines lines_between(uintptr_t address, size_t nbytes) noexcept nogil:
    """Return the lines that hold the *nbytes* at *address*; none if there are no bytes."""
    cdef Lines lines
    lines.first = address & ~(LINE - 1)
    lines.count = (address + nbytes - lines.first + LINE - 1) // LINE if nbytes else 0
    return lines


cdef void write_back(uint8_t *start, size_t nbytes) noexcept nogil:
    """Bring our stores to these bytes into memory, and return when they are there."""
    cdef Lines lines = lines_between(<uintptr_t> start, nbytes)
    cdef size_t i
    for i in range(lines.count):
        line_instruction(CLEAN, <uint8_t *> (lines.first + i * LINE))
    # Orders the line instructions before whatever is stored next, a flag that publishes these bytes above all.
    full_fence()


cdef void drop(const uint8_t *start, size_t nbytes) noexcept nogil:
    """Forget what the caches hold of these bytes, so that the next load asks the memory; our stores are not lost."""
    cdef Lines lines = lines_between(<uintptr_t> start, nbytes)
    cdef size_t i
    # The flag that was read before must have been read before: or a line is dropped too early.
    full_fence()
    for i in range(lines.count):
        line_instruction(EVICT, <uint8_t *> (lines.first + i * LINE))
    # No load of these bytes may go ahead of its line's eviction (mfence orders both; sfence would not).
    full_fence()


cdef void drop_words(const uint64_t *one, const uint64_t *other) noexcept nogil:
    """Forget what the caches hold of two words, as ``drop`` would of each; the memory is waited for once."""
    full_fence()
    line_instruction(EVICT, <uint8_t *> one)
    line_instruction(EVICT, <uint8_t *> other)
    full_fence()


def line_bytes():
    """Return the bytes of a cache line."""
    return LINE


def lines_of(uintptr_t address, size_t nbytes):
    """Return the addresses of the lines that ``flush`` and ``invalidate`` touch for *nbytes* at *address*."""
    cdef Lines lines = lines_between(address, nbytes)
    return [lines.first + i * LINE for i in range(lines.count)]


def instructions():
    """Return the names of the instructions that write back and drop; raise where this processor has none."""
    if CLEAN == NO_INSTRUCTION:
        raise TransportUnavailable(
            "coherence = \"software\" needs cache-line instructions that programs may use: x86-64 and arm64 have "
            "them, this processor does not; serve with coherence = \"hardware\" on memory that is coherent"
        )
    if best_instruction(CLWB) == ARM_DC:
        return "dc cvac", "dc civac"
    return NAMES[CLEAN], NAMES[EVICT]


def flush_memory(memory not None, size_t offset, size_t nbytes):
    """Write back the lines of *nbytes* at *offset* of a writable buffer."""
    cdef uint8_t[::1] whole = memory
    if offset + nbytes > <size_t> whole.shape[0]:
        raise OutOfBounds(f"{nbytes} bytes at {offset} leave a buffer of {whole.shape[0]}")
    if nbytes:
        with nogil:
            write_back(&whole[0] + offset, nbytes)


def drop_memory(memory not None, size_t offset, size_t nbytes):
    """Drop the lines of *nbytes* at *offset* of a buffer."""
    cdef const uint8_t[::1] whole = memory
    if offset + nbytes > <size_t> whole.shape[0]:
        raise OutOfBounds(f"{nbytes} bytes at {offset} leave a buffer of {whole.shape[0]}")
    if nbytes:
        with nogil:
            drop(&whole[0] + offset, nbytes)
