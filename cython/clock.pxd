# Monotonic time in nanoseconds, without the GIL.
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec


cdef inline int64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t> now.tv_sec * 1000000000 + now.tv_nsec


cdef inline int64_t to_ns(double seconds) noexcept nogil:
    """Seconds as nanoseconds; all above ten years, infinity included, is ten years."""
    if not seconds < 3.15e8:
        return <int64_t> 315000000 * 1000000000
    return <int64_t> (seconds * 1e9) if seconds > 0 else 0
