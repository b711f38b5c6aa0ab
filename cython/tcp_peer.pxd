from libc.stdint cimport int64_t, uint64_t

from farpool.native.cipher cimport Encryption
from farpool.native.libsocket cimport iovec
from farpool.native.loans cimport Loans
from farpool.native.stream cimport Stream
from farpool.native.tcp_wire cimport Answer, Request


cdef class TcpChannel:
    cdef Stream stream
    cdef Encryption encryption      # keeps the stream's cipher alive; None in clear
    cdef uint64_t version           # of the peer's credentials that it was opened with
    cdef int64_t used               # when it was last used, ns
    cdef uint64_t born              # forks when it was made

    cdef void close(self) noexcept
    cdef bint ended(self) noexcept
    cdef int exchange(self, iovec *outgoing, int out_count, iovec *incoming, int in_count, Answer *answer,
                      uint64_t expected, int64_t deadline) except -3 nogil


cdef class TcpPeer(Loans):
    cdef readonly object reach      # opens a socket to a host: farpool.transports.reaching.reach
    cdef readonly tuple address
    cdef readonly bytes hello       # the header that opens a connection
    cdef uint64_t epoch             # the server's start that the credentials are of
    cdef readonly uint64_t version  # counts the credentials
    cdef readonly object tls        # what new connections are encrypted with, a TlsClient; None in clear
    cdef int most                   # what the limit is, unless the server refuses more than there are
    cdef int64_t fewer_until        # when it is that again, ns

    cdef TcpChannel take(self, int64_t deadline)
    cdef TcpChannel connect(self, int64_t deadline)
    cdef void give(self, TcpChannel channel)
    cdef void discard(self, TcpChannel channel)
