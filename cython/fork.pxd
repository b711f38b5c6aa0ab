from libc.stdint cimport uint64_t

# Forks between the first process that imported this module and this one.
cdef uint64_t forks
