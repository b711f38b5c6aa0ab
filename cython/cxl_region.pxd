from libc.stdint cimport uint8_t, uint32_t, uint64_t

from farpool.native.mapping cimport Mapping


cdef class CxlRegion:
    cdef uint8_t *base                  # the slab's bytes; NULL once closed
    cdef const uint64_t *generation_word    # in the arena's generation file
    cdef uint64_t generation            # what it must hold
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef uint64_t born                  # forks when this was made
    cdef int busy                       # copies without the GIL: the mapping must outlive them
    cdef uint32_t views                 # buffers of the buffer protocol that are alive
    cdef str label
    cdef Mapping mapping
    cdef Mapping generations
    cdef object on_close
    cdef object __weakref__

    cdef int check(self, Py_ssize_t offset, Py_ssize_t nbytes) except -1
    cdef int check_generation(self) except -1
    cdef int copy(self, uint8_t *target, const uint8_t *source, Py_ssize_t nbytes) except -1
    cdef uint64_t *word(self, object offset, bint writes) except NULL
    cdef object move(self, object parts, bint writes)
    cdef tuple check_span(self, object offset, object nbytes)
