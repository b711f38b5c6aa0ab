# Who stores into a slab looks at one mark, and wakes those who wait: for none (0), one word (its offset + 1), or more.
from libc.stdint cimport uint8_t, uint64_t

from farpool.native.libfutex cimport futex_wake

cdef enum:
    MOST_WAKES = 64         # words of one write that are woken one by one; waiters look by themselves soon, too

cdef extern from *:
    """
    #define SEVERAL UINT64_MAX
    """
    const uint64_t SEVERAL


cdef inline void wake_waiters(const uint8_t *base, uint64_t watched, uint64_t offset, uint64_t nbytes) noexcept nogil:
    """Wake those who wait for a word that a store of *nbytes* at *offset* has touched."""
    cdef uint64_t at = watched - 1
    cdef int left = MOST_WAKES
    if watched != SEVERAL:
        if offset < at + 8 and at < offset + nbytes:
            futex_wake(base + at)
        return
    at = offset & ~<uint64_t> 7
    while at < offset + nbytes and left:
        futex_wake(base + at)
        at += 8
        left -= 1
