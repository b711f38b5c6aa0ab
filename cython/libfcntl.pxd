# <fcntl.h> and <unistd.h> on files below a directory, as far as we use them. C declarations alone.
from posix.types cimport mode_t, off_t

cdef extern from "fcntl.h" nogil:
    int O_RDWR, O_CREAT, O_EXCL, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK, F_GETFL
    int openat(int directory, const char *name, int flags, mode_t mode)
    int fallocate(int fd, int mode, off_t offset, off_t length)
    int fcntl(int fd, int command, ...)

cdef extern from "unistd.h" nogil:
    int unlinkat(int directory, const char *name, int flags)
