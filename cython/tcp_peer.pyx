"""The data connections of one session, and one request with its answer over one of them.

A connection carries one request at a time, so that whoever is interrupted in the middle can throw it away and nobody
ever gets another's bytes. The GIL is released for the whole of an exchange.
"""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t

from farpool.native.clock cimport now_ns
from farpool.native.fork cimport forks
from farpool.native.libsocket cimport MSG_DONTWAIT, MSG_PEEK, close_fd, recv
from farpool.native.operation cimport (
    STATUS_OK,
    STATUS_REFUSED,
    STATUS_SERVER_FULL,
    STATUS_SESSION_FULL,
    STATUS_TENANT_FULL,
    STATUS_VERSION,
)
from farpool.native.stream cimport CLOSED, DONE, EXPIRED, advance, receive_all, receive_some, send_all, stream_init
from farpool.native.tcp_wire cimport WIRE_MAGIC

from farpool.native.tcp_wire import pack_hello
from farpool.protocol.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    FarpoolError,
    ProtocolError,
    QuotaExceeded,
    ServerLost,
    out_of_descriptors,
)

cdef enum:
    IDLE_NS = 20000000      # a connection that rested longer is looked at before it is used
    FEWER_NS = 5000000000   # how long operations make do with the connections that there are once one was refused


cdef class TcpChannel:
    """One data connection. Nobody but its peer and the region that borrowed it touches it."""

    def __cinit__(self, int fd, uint64_t version):
        stream_init(&self.stream, fd)
        self.version = version
        self.used = now_ns()
        self.born = forks

    def __dealloc__(self):
        self.close()

    cdef void close(self) noexcept:
        if self.stream.fd >= 0:
            close_fd(self.stream.fd)
            self.stream.fd = -1

    cdef bint ended(self) noexcept:
        """Whether the server has closed it while it rested."""
        cdef char byte
        cdef ssize_t got
        if now_ns() - self.used < IDLE_NS:
            return False
        if self.stream.cipher != NULL:
            return self.stream.cipher.peek(self.stream.cipher) >= 0 or errno not in (EAGAIN, EINTR)
        got = recv(self.stream.fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK)
        return got >= 0 or errno != EAGAIN      # bytes that nobody asked for are as bad as an end

    cdef int exchange(self, iovec *outgoing, int out_count, iovec *incoming, int in_count, Answer *answer,
                      uint64_t expected, int64_t deadline) except -3 nogil:
        """Send a request, and receive its answer: header first, *expected* bytes behind it unless it is an error.

        incoming[0] is the place of the header. Both arrays are used up. Nothing but this answer can arrive, so that the
        payload may be received together with the header.
        """
        cdef size_t have = 0
        cdef ssize_t got = 0
        cdef int outcome = send_all(&self.stream, outgoing, out_count, deadline)
        if outcome != DONE:
            return outcome
        while have < sizeof(Answer):
            outcome = receive_some(&self.stream, incoming, in_count, 0, deadline, &got)
            if outcome != DONE:
                return outcome
            have += got
            in_count = advance(&incoming, in_count, got)
        if answer.magic != WIRE_MAGIC or answer.length != (expected if answer.status == STATUS_OK else 0):
            return CLOSED
        if answer.status == STATUS_OK and in_count:
            outcome = receive_all(&self.stream, incoming, in_count, deadline)
        self.used = now_ns()
        return outcome


def check_hello(int status, uint64_t detail, str host not None, int port):
    """Raise what the answer to a hello means, unless it lets the client in."""
    if status == STATUS_OK:
        return
    port_name = f"the data port {host}:{port}"
    if status == STATUS_VERSION:
        raise ProtocolError(f"{port_name} speaks version {detail} of the protocol; install matching versions")
    if status == STATUS_REFUSED:
        raise AuthenticationFailed(f"{port_name} does not know this session (any more)")
    if status == STATUS_SESSION_FULL:
        raise QuotaExceeded(
            f"this session has {detail} connections to {port_name}, as many as one may have; use it from fewer event "
            "loops, connect once more for some of them, or have the server's max_session_connections raised: "
            "[transport_settings.tcp]",
            limit=detail,
        )
    if status == STATUS_TENANT_FULL:
        raise QuotaExceeded(
            f"this tenant has {detail} connections to {port_name}, and no tenant may have more than are left for "
            "others; close some pools, or have the server's max_connections raised: [transport_settings.tcp]",
            used=detail,
        )
    if status == STATUS_SERVER_FULL:
        raise QuotaExceeded(
            f"{port_name} has {detail} connections, as many as it may have; close some pools, or have the server's "
            "max_connections raised ([transport_settings.tcp], and LimitNOFILE)",
            limit=detail,
        )
    raise ProtocolError(f"{port_name} answered the hello with status {status}; install matching versions")


cdef class TcpPeer(Loans):
    """The data connections of one session; see the stub for the contract."""

    def __init__(self, reach not None, int limit=8, tls=None):
        Loans.__init__(self, limit)
        self.most = limit
        self.reach = reach
        self.tls = tls
        self.address = ("", 0)
        self.hello = b""

    def configure(self, str host not None, int port, uint32_t slot, bytes secret not None, uint64_t epoch):
        """Set where and with what new connections are opened; connections with other credentials are given up."""
        hello = pack_hello(slot, secret)
        if (host, port) != self.address or hello != self.hello or epoch != self.epoch:
            self.address = (host, port)
            self.hello = hello
            self.epoch = epoch
            self.version += 1
        return self.version

    cdef TcpChannel take(self, int64_t deadline):
        """Borrow a connection.

        Raises ``ServerLost``, ``DeadlineExceeded``, ``AuthenticationFailed``, ``QuotaExceeded``.
        """
        cdef TcpChannel channel
        while True:
            if self.limit < self.most and now_ns() >= self.fewer_until:
                self.limit = self.most
            channel = self.borrow(deadline)
            if channel is None:
                try:
                    return self.connect(deadline)
                except QuotaExceeded:
                    self.write_off()
                    if not self.opened:
                        raise
                    # The server has no place for another one: take turns with those that there are.
                    self.limit = self.opened
                    self.fewer_until = now_ns() + FEWER_NS
                    continue
                except BaseException:
                    self.write_off()
                    raise
            if channel.version == self.version and not channel.ended():
                return channel
            self.discard(channel)

    cdef TcpChannel connect(self, int64_t deadline):
        """Open a connection and say hello."""
        cdef uint64_t version = self.version
        cdef TcpChannel channel
        cdef Answer answer
        cdef iovec outgoing, incoming
        cdef int outcome
        cdef bytes hello = self.hello
        host, port = self.address
        label = f"the data port {host}:{port}"
        if deadline <= now_ns():
            raise DeadlineExceeded(
                f"the deadline passed before a data connection to {host}:{port} was open; raise timeout="
            )
        try:
            channel = TcpChannel(self.reach(host, port, deadline / 1e9, label).detach(), version)
            if self.tls is not None:
                channel.encryption = self.tls.connect(channel.stream.fd, label, deadline / 1e9)
                channel.stream.cipher = channel.encryption.cipher
        except FarpoolError:
            raise
        except OSError as error:
            raise out_of_descriptors(error) or ServerLost(
                f"no data connection to {host}:{port}: {error}; is the server running, and the port reachable?"
            ) from None
        outgoing.iov_base = <char *> hello
        outgoing.iov_len = len(hello)
        incoming.iov_base = &answer
        incoming.iov_len = sizeof(answer)
        with nogil:
            outcome = channel.exchange(&outgoing, 1, &incoming, 1, &answer, 0, deadline)
        if outcome == EXPIRED:
            raise DeadlineExceeded(
                f"{label} did not answer the hello in time; is the server stopped?"
            )
        if outcome != DONE:
            raise ServerLost(f"{label} closed the connection; see the server's log for the reason")
        check_hello(answer.status, answer.detail, host, port)
        return channel

    cdef void give(self, TcpChannel channel):
        """Return a connection that is between two exchanges."""
        if self.closed or channel.version != self.version:
            self.discard(channel)
        else:
            self.give_back(channel)

    cdef void discard(self, TcpChannel channel):
        """Close a connection that is in the middle of an exchange, or of no more use."""
        channel.close()
        self.write_off()

    def close(self):
        """Close the idle connections, and the others when their operation ends. Idempotent."""
        self.closed = True
        while (channel := self.take_idle()) is not None:
            self.discard(channel)
