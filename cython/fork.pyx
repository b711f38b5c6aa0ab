"""Know in one load whether this process is a fork of the one that made a handle.

``getpid`` is a system call; a counter that ``pthread_atfork`` raises in each child costs one load. It also sees forks
made by C code, which ``os.register_at_fork`` does not.
"""

from farpool.native.libpthread cimport pthread_atfork

cdef uint64_t forks = 0


cdef void count_fork() noexcept nogil:
    global forks
    forks += 1


pthread_atfork(NULL, NULL, count_fork)


def fork_count():
    """Return how often this process is a fork of a fork: it changes in a child, never in a parent. Costs one load."""
    return forks
