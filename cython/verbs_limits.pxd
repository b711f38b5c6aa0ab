from libc.stdint cimport int64_t, uint32_t

from farpool.native.verbs cimport Device, MemoryRegion, ProtectionDomain, QueuePair


cdef class BareVerbs:
    cdef Device device
    cdef ProtectionDomain domain
    cdef QueuePair near         # posts
    cdef QueuePair far          # answers
    cdef MemoryRegion local
    cdef MemoryRegion remote

    cdef MemoryRegion map(self, size_t nbytes, int access)
    cdef Py_ssize_t run(self, int opcode, const int64_t[::1] offsets, uint32_t nbytes, int batch, int calls,
                        int64_t[::1] samples, double seconds) except -1
