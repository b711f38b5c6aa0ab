from farpool.native.tcp_connection cimport Worker

cdef void run(Worker *worker) noexcept nogil
cdef void listen_again(Worker *worker, bint again) noexcept nogil
