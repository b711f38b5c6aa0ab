from libc.stdint cimport uint8_t, uint64_t, uintptr_t

# The lines that a range of bytes touches.
cdef struct Lines:
    uintptr_t first         # address of the first line
    size_t count

cdef size_t LINE            # bytes of a cache line, a power of two

cdef Lines lines_between(uintptr_t address, size_t nbytes) noexcept nogil
cdef void write_back(uint8_t *start, size_t nbytes) noexcept nogil
cdef void drop(const uint8_t *start, size_t nbytes) noexcept nogil
cdef void drop_words(const uint64_t *one, const uint64_t *other) noexcept nogil
