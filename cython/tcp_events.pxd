from libc.stdint cimport uint64_t

from farpool.native.slab_table cimport Entry
from farpool.native.tcp_connection cimport Shared

cdef void report(Shared *shared, int kind, const char *peer, uint64_t number, uint64_t session=*) noexcept nogil
cdef void show_changed(Shared *shared, Entry *entry) noexcept nogil
cdef list take_changed(Shared *shared, int most)
