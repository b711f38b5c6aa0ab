# futex(2) between processes, on the low half of an 8-byte word. C declarations alone.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from * nogil:
    """
    #include <limits.h>
    #include <linux/futex.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>
    static inline void fp_futex_wait(const uint64_t *word, uint32_t expected, int64_t ns) {
        struct timespec limit = {ns / 1000000000, ns % 1000000000};
        syscall(SYS_futex, (const uint32_t *)word, FUTEX_WAIT, expected, &limit, NULL, 0);
    }
    static inline void fp_futex_wake(const void *word) {
        syscall(SYS_futex, (const uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    """
    void futex_wait "fp_futex_wait"(const uint64_t *word, uint32_t expected, int64_t ns)
    void futex_wake "fp_futex_wake"(const void *word)
