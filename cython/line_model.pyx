"""A model of one host's caches over memory that is not coherent, for tests: the worst that such hardware may do.

Every line is cached from the start and is never evicted by itself, so that nobody sees a store before it is written
back, nor a change before the line is dropped. A line is written back whole, and only if something in it changed, as
caches do: two hosts that store into one line at the same time lose a store here as they would there.
"""

from libc.string cimport memcmp, memcpy

from farpool.native.cache_lines cimport LINE, Lines, lines_between
from farpool.native.libmman cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
)


cdef class LineModel:
    """The caches of one host over *memory*; ``fault`` is ``"flush"`` or ``"invalidate"`` for one that forgets those."""

    def __cinit__(self, Mapping memory not None, str fault=""):
        cdef void *copies
        self.memory = memory
        self.length = memory.length
        self.forgets_flush = fault == "flush"
        self.forgets_drop = fault == "invalidate"
        copies = mmap(NULL, 2 * self.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if copies == MAP_FAILED:
            raise MemoryError(f"no room for a model of {self.length} bytes of cache")
        self.cache = <uint8_t *> copies
        self.clean = self.cache + self.length
        memcpy(self.cache, memory.base, self.length)
        memcpy(self.clean, memory.base, self.length)

    def __dealloc__(self):
        if self.cache != NULL:
            munmap(self.cache, 2 * self.length)

    cdef void write_back(self, size_t offset, size_t nbytes) noexcept nogil:
        cdef Lines lines = lines_between(offset, nbytes)
        cdef size_t i, at
        if self.forgets_flush or not self.memory.writable:
            return
        for i in range(lines.count):
            at = lines.first + i * LINE
            if memcmp(self.cache + at, self.clean + at, LINE):
                memcpy(self.memory.base + at, self.cache + at, LINE)
                memcpy(self.clean + at, self.cache + at, LINE)

    cdef void drop(self, size_t offset, size_t nbytes) noexcept nogil:
        self.write_back(offset, nbytes)
        if not self.forgets_drop:
            self.fetch(offset, nbytes)

    cdef void fetch(self, size_t offset, size_t nbytes) noexcept nogil:
        cdef Lines lines = lines_between(offset, nbytes)
        if lines.count:
            memcpy(self.cache + lines.first, self.memory.base + lines.first, lines.count * LINE)
            memcpy(self.clean + lines.first, self.cache + lines.first, lines.count * LINE)
