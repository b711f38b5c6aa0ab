"""One shared mapping of a file, with one owner: slabs and generation words live in such.

The GIL is held throughout: nothing here waits but mmap and munmap themselves.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_SetFromErrno
from libc.stdint cimport uint64_t

from farpool.native.bus_guard cimport guard, unguard
from farpool.native.libatomics cimport add_count, load_count, load_word, store_word
from farpool.native.libmman cimport (
    _SC_PAGESIZE,
    MAP_FAILED,
    MAP_SHARED,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
    sysconf,
)

from farpool.protocol.errors import InvalidArgument, OutOfBounds, ReadOnly, RegionInUse, StaleSlab

cdef size_t PAGE = sysconf(_SC_PAGESIZE)


cdef class Mapping:
    """One shared mapping of a file's bytes, owned by this object. Thread-safe.

    ``nbytes`` is rounded up to whole pages for the kernel, and kept as asked. The buffer protocol shows the bytes
    (read-only if not ``writable``); ``close`` raises ``RegionInUse`` while such views live. The descriptor is not
    kept: the caller may close it at once. A *guarded* mapping outlives a file that is cut short, where
    ``bus_guard.install`` was called: it shows zeroes then, and is ``lost``.

    Raises ``OSError`` from mmap(2).
    """

    def __cinit__(self, int fd, size_t nbytes, *, bint writable, long long offset=0, bint guarded=False):
        if nbytes == 0 or nbytes > <size_t> 1 << 62:
            raise InvalidArgument(f"a mapping has 1 to 2**62 bytes, not {nbytes}")
        self.length = (nbytes + PAGE - 1) // PAGE * PAGE
        self.nbytes = nbytes
        self.writable = writable
        cdef int protection = PROT_READ | PROT_WRITE if writable else PROT_READ
        cdef void *base = mmap(NULL, self.length, protection, MAP_SHARED, fd, offset)
        if base == MAP_FAILED:
            PyErr_SetFromErrno(OSError)
        self.base = <uint8_t *> base
        if guarded:
            self.guarded = guard(fd, <uint64_t> base, self.length)

    def __dealloc__(self):
        if self.base != NULL:
            self.unmap()

    cdef void unmap(self) noexcept:
        if self.guarded != NULL:
            unguard(self.guarded)
            self.guarded = NULL
        munmap(self.base, self.length)
        self.base = NULL

    @property
    def address(self):
        return <size_t> self.base

    @property
    def closed(self):
        return self.base == NULL

    @property
    def lost(self):
        """Whether it shows zeroes of ours, since its file was cut short."""
        return self.guarded != NULL and load_count(&self.guarded.lost) != 0

    @property
    def exports(self):
        """Views of the buffer protocol that are alive now."""
        return load_count(&self.views)

    cdef uint64_t *word(self, Py_ssize_t offset) except NULL:
        if self.base == NULL:
            raise StaleSlab("the mapping is closed")
        if offset < 0 or offset > <Py_ssize_t> self.nbytes - 8:
            raise OutOfBounds(f"word at {offset} is outside the mapping of {self.nbytes} bytes")
        if offset % 8:
            raise InvalidArgument(f"a word's offset is a multiple of 8, not {offset}")
        return <uint64_t *> (self.base + offset)

    def load(self, Py_ssize_t offset):
        """Return the aligned unsigned 8-byte word at *offset*, with acquire order."""
        return load_word(self.word(offset))

    def store(self, Py_ssize_t offset, uint64_t value):
        """Set the aligned word at *offset*, with release order; ``ReadOnly`` if the mapping is."""
        if not self.writable:
            raise ReadOnly("the mapping is read-only")
        store_word(self.word(offset), value)

    def close(self):
        """Unmap. A second call does nothing; ``RegionInUse`` while views live."""
        if self.base == NULL:
            return
        if load_count(&self.views):
            raise RegionInUse(
                f"{load_count(&self.views)} views of this mapping are alive; "
                "delete the arrays and memoryviews made from it first"
            )
        self.unmap()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.close()

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.base == NULL:
            raise StaleSlab("the mapping is closed")
        PyBuffer_FillInfo(view, self, self.base, self.nbytes, not self.writable, flags)
        add_count(&self.views, 1)

    def __releasebuffer__(self, Py_buffer *view):
        add_count(&self.views, -1)
