from libc.stdint cimport uint64_t

cdef enum:
    LARGE_COPY = 131072     # bytes from which a copy lets go of the GIL, 5 us of work; letting go costs what 4 KiB do

cdef int get_source(object buffer, Py_buffer *view) except -1
cdef int get_target(object buffer, Py_buffer *view) except -1
cdef Py_ssize_t as_offset(object offset) except? -1
cdef uint64_t as_word(object value) except? 0
cdef uint64_t as_addend(object value) except? 0
cdef double as_seconds(object timeout) except -1
cdef int raise_out_of_bounds(Py_ssize_t offset, Py_ssize_t nbytes, Py_ssize_t limit, str label) except -1
cdef int raise_misaligned(Py_ssize_t offset, str label) except -1
cdef int raise_read_only(str label) except -1
cdef int raise_stale(str label) except -1
cdef int raise_stale_after(str label) except -1
cdef object successor(object follow, object error, object timeout)
cdef int raise_closed(str label) except -1
cdef int raise_wrong_domain(str label, str theirs, str ours) except -1
cdef int raise_forked() except -1


cdef inline int check_timeout(object timeout) except -1:
    """Raise ``InvalidArgument`` for a timeout that is none, where none is needed."""
    if timeout is not None:
        as_seconds(timeout)
    return 0


cdef inline bint outside(Py_ssize_t offset, Py_ssize_t nbytes, Py_ssize_t limit) noexcept nogil:
    """Whether [offset, offset + nbytes) leaves [0, limit); no sum can overflow."""
    return offset < 0 or nbytes < 0 or nbytes > limit or offset > limit - nbytes
