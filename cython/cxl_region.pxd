from libc.stdint cimport uint8_t, uint32_t, uint64_t

from farpool.native.equal_parts cimport EqualParts
from farpool.native.line_model cimport LineModel
from farpool.native.mapping cimport Mapping


cdef class CxlRegion:
    cdef uint8_t *base                  # the slab's bytes; NULL once closed
    cdef const uint64_t *generation_word    # in the arena's generation file
    cdef uint64_t generation            # what it must hold
    cdef const uint64_t *session_word   # in the same file; the generation word itself where there is none
    cdef uint64_t session               # what it must hold
    cdef const uint64_t *watched        # tells which word somebody waits for (watched_word.pxd); NULL if nothing does
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef bint atomics                   # the slab's words belong to the CPU's atomics
    cdef uint64_t born                  # forks when this was made
    cdef int busy                       # copies without the GIL: the mapping must outlive them
    cdef uint32_t views                 # buffers of the buffer protocol that are alive
    cdef bint incoherent                # other hosts' caches do not see ours, nor we theirs
    cdef LineModel model                # of such caches, in tests; else None
    cdef bint viewed                    # a view was made once, so that stores may wait in our caches
    cdef str label
    cdef Mapping mapping
    cdef Mapping generations
    cdef object on_close
    cdef public object follow           # (StaleSlab, seconds) -> the region of the memory that has replaced ours
    cdef object __weakref__

    cdef int check(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1
    cdef int check_generation(self) except -1
    cdef int check_written(self) except -1
    cdef bint serves(self, Py_ssize_t offset, Py_ssize_t nbytes) noexcept nogil
    cdef bint is_current(self) noexcept nogil
    cdef object elsewhere(self, Py_ssize_t offset, Py_ssize_t nbytes, object timeout)
    cdef void settle(self) noexcept nogil
    cdef void observe(self, const uint8_t *at, Py_ssize_t nbytes) noexcept nogil
    cdef void observe_edges(self, const uint8_t *at, Py_ssize_t nbytes) noexcept nogil
    cdef void publish(self, uint8_t *at, Py_ssize_t nbytes) noexcept nogil
    cdef void load_bytes(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) noexcept nogil
    cdef void store_bytes(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) noexcept nogil
    cdef void store_pieces(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) noexcept nogil
    cdef int copy_out(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) except -1
    cdef int copy_in(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) except -1
    cdef void wake(self, Py_ssize_t start, Py_ssize_t nbytes) noexcept nogil
    cdef object batch(self, list parts, bint writes, object timeout)
    cdef object move(self, object parts, bint writes)
    cpdef EqualParts describe(self, object offsets, object nbytes, object buffer, bint inward)
    cdef object move_all(self, EqualParts parts)
    cdef void copy_parts(self, uint8_t *base, EqualParts parts, Py_ssize_t first, Py_ssize_t count) noexcept nogil
    cdef uint64_t *word(self, Py_ssize_t start, bint writes) except NULL
    cdef uint64_t *atomic_word(self, Py_ssize_t start) except NULL
    cdef int stored(self, Py_ssize_t start, bint atomically) except -1
    cdef int synchronize(self, object offset, object nbytes, bint ours) except -1
    cdef int sweep(self, Py_ssize_t start, Py_ssize_t nbytes, bint ours) except -1
    cdef tuple check_span(self, object offset, object nbytes)
