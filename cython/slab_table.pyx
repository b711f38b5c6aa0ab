"""The native table that data planes read without locks: base, size, generation and rights of each attachment.

The wait in ``remove`` lets go of the GIL. A pin lasts for one non-blocking system call or one copy, never for as long
as a peer likes, so that the wait is short whatever a client does.
"""

from libc.stdint cimport uintptr_t

from farpool.native.libatomics cimport load_count, store_word
from farpool.native.libmman cimport (
    MAP_ANONYMOUS,
    MAP_FAILED,
    MAP_NORESERVE,
    MAP_PRIVATE,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
    usleep,
)
from farpool.native.mapping cimport Mapping

from farpool.protocol.errors import PoolFull

cdef uint32_t never = 0     # lost, of memory that nobody else can cut short


cdef class SlabTable:
    """The native table that data planes read without locks; see the stub for the contract."""

    def __cinit__(self, uint32_t capacity=1 << 20):
        # Untouched pages of an anonymous mapping cost nothing, so the table never has to move.
        cdef void *entries = mmap(NULL, <size_t> capacity * sizeof(Entry), PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if entries == MAP_FAILED:
            raise MemoryError(f"no address space for a table of {capacity} slabs")
        self.entries = <Entry *> entries
        self.capacity = capacity
        self.unused = []
        self.owners = {}

    def __dealloc__(self):
        if self.entries != NULL:
            munmap(self.entries, <size_t> self.capacity * sizeof(Entry))

    def __len__(self):
        return len(self.owners)

    def insert(self, owner, uintptr_t address, uint64_t nbytes, uint64_t generation, uint64_t session, bint writable):
        """Add an attachment and return its handle; *owner* keeps the memory alive until ``remove``."""
        cdef uint32_t handle
        cdef Entry *entry
        if self.unused:
            handle = self.unused.pop()
        elif self.fresh < self.capacity:
            handle = self.fresh
            self.fresh += 1
        else:
            raise PoolFull(
                f"all {self.capacity} attachments of this server's data plane are in use; detach slabs first"
            )
        entry = self.entries + handle
        entry.session = session
        entry.base = <uint8_t *> address
        entry.nbytes = nbytes
        entry.writable = writable
        entry.watched = 0
        entry.changed = 0
        entry.lost = &never
        if isinstance(owner, Mapping) and (<Mapping> owner).guarded != NULL:
            entry.lost = &(<Mapping> owner).guarded.lost
        store_word(&entry.generation, generation)
        self.owners[handle] = owner
        return handle

    def watch(self, uint32_t handle, uint64_t mark):
        """Say which word of the slab somebody waits for: its offset + 1; 0 is none, all ones are several."""
        if handle in self.owners:
            store_word(&self.entries[handle].watched, mark)

    def remove(self, uint32_t handle):
        """End an attachment, and return when no operation on it is in flight. An unknown handle is ignored."""
        cdef Entry *entry
        if handle not in self.owners:
            return
        entry = self.entries + handle
        store_word(&entry.generation, 0)
        while load_count(&entry.pins):
            with nogil:
                usleep(10)
        del self.owners[handle]
        self.unused.append(handle)
