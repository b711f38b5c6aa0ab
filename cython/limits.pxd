from libc.stdint cimport int64_t, uint8_t

# What one timed loop over memory works on. The caller's buffers stay alive and still for the whole loop.
cdef struct Walk:
    uint8_t *memory         # what the offsets count from
    const int64_t *offsets  # where each call works, in turn; bytes, checked before the loop
    size_t places           # offsets there are
    size_t place            # the offset that comes next
    uint8_t *buffer         # the caller's side of a copy: `parts` parts of `nbytes`, used in turn
    size_t nbytes           # bytes of one call
    size_t parts
    size_t part             # the part that comes next
    size_t calls            # calls that are timed together

ctypedef void (*Block)(Walk *walk) noexcept nogil
