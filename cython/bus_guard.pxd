from libc.stdint cimport uint32_t, uint64_t

# Memory of ours that a file backs which others may cut short.
cdef struct Guarded:
    uint64_t base           # 0 while the place is free
    uint64_t length         # whole pages of the file
    uint32_t lost           # the file's pages were gone, and ours are there instead
    Guarded *unused         # next free place

cdef Guarded *guard(int fd, uint64_t base, uint64_t length) except NULL
cdef void unguard(Guarded *place) noexcept
cdef void touch(const void *base, size_t nbytes) noexcept nogil
