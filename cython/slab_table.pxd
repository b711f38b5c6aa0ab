from libc.stdint cimport uint8_t, uint32_t, uint64_t

from farpool.native.libatomics cimport acquire_fence, add_count, load_count, load_word

# One attachment: what one session may do to one slab. A data plane pins it for the moment of one system call or copy.
cdef struct Entry:
    uint64_t generation     # of the slab; 0 while the entry is free
    uint64_t session        # who may use it
    uint8_t *base           # the slab's bytes
    uint64_t nbytes
    uint32_t writable
    uint32_t pins           # operations in flight
    uint64_t watched        # which word somebody waits for: see watched_word.pxd
    uint32_t changed        # stores to a watched word that the event loop has not been shown
    uint32_t padding        # one entry a cache line: neighbours do not disturb each other
    const uint32_t *lost    # not 0 once the slab's file was cut short: what is at base are zeroes then


cdef class SlabTable:
    cdef Entry *entries
    cdef readonly uint32_t capacity
    cdef list unused        # handles that may be handed out again
    cdef uint32_t fresh     # handles from here on were never used
    cdef dict owners        # handle -> what keeps its memory alive


cdef inline Entry *pin(Entry *entries, uint32_t capacity, uint32_t handle, uint64_t session,
                       uint64_t generation) noexcept nogil:
    """Return the entry, which stays until ``unpin``; NULL if it is not (or no longer) that session's."""
    cdef Entry *entry
    if handle >= capacity or generation == 0:
        return NULL
    entry = entries + handle
    add_count(&entry.pins, 1)
    # Pinned first and read then, both sequentially consistent: a remover sees the pin, or we see its zero.
    if load_word(&entry.generation) == generation and entry.session == session:
        return entry
    add_count(&entry.pins, -1)
    return NULL


cdef inline bint is_lost(const Entry *entry) noexcept nogil:
    """Tell of a pinned entry whether what was done with its bytes may have been done with zeroes in their place."""
    acquire_fence()     # those accesses come first
    return load_count(entry.lost) != 0


cdef inline void unpin(Entry *entry) noexcept nogil:
    add_count(&entry.pins, -1)
