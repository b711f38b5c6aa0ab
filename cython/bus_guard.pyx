"""Outlive a client that cuts the file of its slab short: a server's access behind the end is a SIGBUS otherwise.

A client over cxl holds a writable descriptor, and tmpfs seals only files that have no name. So the first fault in a
guarded mapping puts zeroes of our own in the place of all of it, and the access goes on; who made it looks at ``lost``
before anybody is told what came of it. Whoever watches the descriptor ends the slab. System calls meet the same fault
as ``EFAULT``: ``touch`` makes a fault of that. The GIL is not needed.
"""

from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport errno
from libc.signal cimport SIGBUS
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc
from libc.string cimport memset
from posix.signal cimport SA_SIGINFO, sigaction, sigaction_t, sigemptyset, siginfo_t
from posix.stat cimport fstat, struct_stat

from farpool.native.libatomics cimport load_word, store_count, store_word
from farpool.native.libmman cimport (
    _SC_PAGESIZE,
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_FIXED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    sysconf,
)
from farpool.native.libsocket cimport EFD_CLOEXEC, EFD_NONBLOCK, eventfd, read, write

cdef enum:
    BLOCK_PLACES = 1024

cdef struct Block:
    Block *next
    Guarded places[BLOCK_PLACES]

# Blocks are only ever added, so that the handler can walk them whatever it has interrupted.
cdef Block first
cdef Guarded *unused = NULL
cdef uint32_t fresh = 0         # places of the newest block from here on were never used
cdef Block *newest = &first
cdef int event_fd = -1
cdef sigaction_t before
cdef uint64_t PAGE = sysconf(_SC_PAGESIZE)


cdef Guarded *guard(int fd, uint64_t base, uint64_t length) except NULL:
    """Guard a mapping of the file *fd* until ``unguard``."""
    global unused, fresh, newest
    cdef Guarded *place
    cdef struct_stat status
    cdef uint64_t page = PAGE
    if fstat(fd, &status) == 0 and status.st_blksize > <int> PAGE and base % <uint64_t> status.st_blksize == 0:
        page = status.st_blksize    # a huge page is replaced whole or not at all
    if unused != NULL:
        place, unused = unused, unused.unused
    else:
        if fresh == BLOCK_PLACES:
            newest.next = <Block *> calloc(1, sizeof(Block))
            if newest.next == NULL:
                raise MemoryError
            newest = newest.next
            fresh = 0
        place = &newest.places[fresh]
        fresh += 1
    place.length = (length + page - 1) // page * page
    place.lost = 0
    store_word(&place.base, base)
    return place


cdef void unguard(Guarded *place) noexcept:
    """Guard it no more; it is still mapped."""
    global unused
    store_word(&place.base, 0)
    place.unused = unused
    unused = place


cdef extern from *:
    """
    static inline void fp_touch(const void *at) { (void) *(const volatile unsigned char *) at; }
    """
    void touch_byte "fp_touch"(const void *at) noexcept nogil


cdef void touch(const void *base, size_t nbytes) noexcept nogil:
    """Read a byte of each page of a range."""
    cdef uintptr_t at = <uintptr_t> base
    cdef uintptr_t end = at + nbytes
    while at < end:
        touch_byte(<const void *> at)
        at = (at & ~<uintptr_t> (PAGE - 1)) + PAGE


cdef bint replace(Guarded *place, uint64_t base) noexcept nogil:
    """Put zeroes where the mapping was. Safe in a signal handler."""
    cdef uint64_t one = 1
    store_count(&place.lost, 1)     # first: whoever finds zeroes finds this
    if mmap(<void *> base, place.length, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED:
        return False
    write(event_fd, &one, sizeof(one))
    return True


cdef void on_bus_error(int number, siginfo_t *info, void *context) noexcept nogil:
    cdef uint64_t address = <uint64_t> info.si_addr
    cdef uint64_t base
    cdef int saved = errno, i
    cdef Block *block = &first
    while block != NULL:
        for i in range(BLOCK_PLACES):
            base = load_word(&block.places[i].base)
            if base and base <= address < base + block.places[i].length and replace(&block.places[i], base):
                (&errno)[0] = saved
                return
        block = block.next
    sigaction(SIGBUS, &before, NULL)    # not ours: the access faults again, and takes the old course


def install():
    """Outlive SIGBUS in guarded mappings from now on; return a descriptor that is readable when one was lost."""
    global event_fd
    cdef sigaction_t action
    if event_fd >= 0:
        return event_fd
    event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
    if event_fd < 0:
        PyErr_SetFromErrno(OSError)
    memset(&action, 0, sizeof(action))
    action.sa_sigaction = on_bus_error
    action.sa_flags = SA_SIGINFO
    sigemptyset(&action.sa_mask)
    sigaction(SIGBUS, &action, &before)
    return event_fd


def seen():
    """Make the descriptor unreadable until the next mapping is lost."""
    cdef uint64_t count
    if event_fd >= 0:
        read(event_fd, &count, sizeof(count))
