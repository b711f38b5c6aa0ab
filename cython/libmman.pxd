# <sys/mman.h>, as far as we use it. C declarations alone.
from posix.types cimport off_t

cdef extern from "sys/mman.h" nogil:
    void *MAP_FAILED
    int PROT_READ, PROT_WRITE
    int MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MAP_FIXED
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
    int munmap(void *addr, size_t length)

cdef extern from "unistd.h" nogil:
    long sysconf(int name)
    int _SC_PAGESIZE
    int usleep(unsigned int usec)
