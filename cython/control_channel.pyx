"""The client's end of a control connection: whole frames out and in, and the heartbeat that needs no GIL.

The GIL is released around each wait. A native mutex keeps frames whole when a caller and the heartbeat send at once.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cython cimport no_gc_clear
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.time cimport CLOCK_MONOTONIC, timespec

from farpool.native.cipher cimport Encryption
from farpool.native.clock cimport to_ns
from farpool.native.fork cimport forks
from farpool.native.heartbeat cimport LONGEST_BEAT, Heartbeat, heartbeat_start, heartbeat_stop
from farpool.native.libpthread cimport (
    pthread_mutex_clocklock,
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_t,
    pthread_mutex_unlock,
)
from farpool.native.libsocket cimport POLLRDHUP, SHUT_RDWR, close_fd, iovec, poll, pollfd, shutdown
from farpool.native.stream cimport DONE, EXPIRED, Stream, receive_some, send_all, stream_init

from farpool.protocol.errors import DeadlineExceeded, ForkedSession, InvalidArgument, ProtocolError, ServerLost

cdef enum:
    LENGTH_BYTES = 4
    FIRST_ROOM = 4096


@no_gc_clear    # the heartbeat goes on until the end: the collector must not take the encryption from it before
cdef class ControlChannel:
    """The client's end of a control connection: whole frames out and in, and the heartbeat that needs no GIL.

    Takes over the connected, blocking stream socket *fd*. ``send`` may be called by several threads, and runs
    beside ``receive``; ``receive`` by one thread at a time. Deadlines are seconds of ``time.monotonic()``. After
    ``ServerLost`` or ``ProtocolError``, or when a frame was cut off while it was sent, the channel is ``broken`` and
    every later call raises ``ServerLost``. With an *encryption* that several threads may share every byte goes through
    it.
    """

    cdef Stream stream
    cdef Encryption encryption      # keeps the stream's cipher alive; None in clear
    cdef bint receiving             # a thread is inside receive
    cdef uint64_t born              # forks when this was made
    cdef bint lost
    cdef uint32_t max_frame
    cdef uint8_t *buffer            # bytes that have come and were not handed out yet
    cdef size_t room
    cdef size_t filled
    cdef int users                  # threads inside send or receive: the descriptor must outlive their calls
    cdef pthread_mutex_t sending
    cdef Heartbeat *beat

    def __cinit__(self, int fd, uint32_t max_frame, Encryption encryption=None):
        stream_init(&self.stream, fd)
        self.encryption = encryption
        if encryption is not None:
            self.stream.cipher = encryption.cipher
        self.born = forks
        self.max_frame = max_frame
        pthread_mutex_init(&self.sending, NULL)
        self.room = FIRST_ROOM
        self.buffer = <uint8_t *> malloc(self.room)
        if self.buffer == NULL:
            raise MemoryError

    def __dealloc__(self):
        self.close()
        free(self.buffer)
        if self.born == forks:
            pthread_mutex_destroy(&self.sending)

    @property
    def broken(self):
        """Whether the connection is of no more use."""
        return self.lost or self.stream.fd < 0 or (self.beat != NULL and self.beat.cut)

    def fileno(self):
        """Return the socket's descriptor, -1 once closed."""
        return self.stream.fd

    cdef int enter(self) except -1:
        if self.born != forks:
            raise ForkedSession("this session belongs to the parent process; call farpool.connect in the child")
        if self.broken:
            raise ServerLost("the control connection has ended")
        self.users += 1
        return 0

    cdef void leave(self) noexcept:
        self.users -= 1
        if self.users == 0 and self.lost:
            self.close_socket()

    cdef int check(self, int outcome, str doing) except -1:
        if outcome == DONE:
            return 0
        if outcome == EXPIRED:
            raise DeadlineExceeded(
                f"the deadline passed while {doing}; raise timeout=, or see whether the server is stopped"
            )
        self.lost = True
        refusal = None if self.encryption is None else self.encryption.failure()
        raise refusal or ServerLost(f"the server closed the control connection while {doing}")

    def send(self, bytes frame not None, double deadline):
        """Send one whole frame. Raises ``ServerLost``, ``DeadlineExceeded``; runs signal handlers while it waits."""
        cdef iovec part
        cdef int outcome = EXPIRED
        cdef int64_t until = to_ns(deadline)
        cdef timespec until_spec
        cdef bint whole = False
        until_spec.tv_sec = until // 1000000000
        until_spec.tv_nsec = until % 1000000000
        part.iov_base = PyBytes_AS_STRING(frame)
        part.iov_len = len(frame)
        self.enter()
        try:
            with nogil:
                if pthread_mutex_clocklock(&self.sending, CLOCK_MONOTONIC, &until_spec) == 0:
                    try:
                        outcome = send_all(&self.stream, &part, 1, until)
                        whole = outcome == DONE
                    finally:
                        pthread_mutex_unlock(&self.sending)
                else:
                    whole = True    # nothing of it was sent
            self.check(outcome, "sending a request")
        finally:
            if not whole:
                self.lost = True    # part of a frame may be out, and nothing can follow it
            self.leave()

    def receive(self, double deadline):
        """Return the payload of the next frame.

        A deadline or Ctrl-C leaves the channel whole: what has come is kept for the next call. Raises ``ServerLost``,
        ``DeadlineExceeded``, ``ProtocolError``.
        """
        cdef iovec part
        cdef ssize_t got = 0
        cdef int outcome
        cdef size_t whole
        cdef int64_t until = to_ns(deadline)
        self.enter()
        self.receiving = True
        try:
            while True:
                whole = self.frame_bytes()
                if whole and self.filled >= whole:
                    return self.take(whole)
                part.iov_base = self.buffer + self.filled
                part.iov_len = self.room - self.filled
                with nogil:
                    outcome = receive_some(&self.stream, &part, 1, 0, until, &got)
                self.check(outcome, "waiting for its reply")
                self.filled += got
                PyErr_CheckSignals()    # one that came while we waited for the GIL would wait for the next bytes
        finally:
            self.receiving = False
            self.leave()

    cdef size_t frame_bytes(self) except? 0:
        """Return the length of the frame that the buffer begins with, and make room for it; 0 if not known yet."""
        cdef uint32_t length
        cdef size_t whole
        cdef uint8_t *larger
        if self.filled < LENGTH_BYTES:
            return 0
        memcpy(&length, self.buffer, LENGTH_BYTES)      # little-endian, as every machine with CXL or RDMA is
        if length > self.max_frame:
            self.lost = True
            raise ProtocolError(
                f"the server announces a frame of {length} bytes, the limit is {self.max_frame}: is this a Farpool "
                "port?"
            )
        whole = LENGTH_BYTES + <size_t> length
        if whole > self.room:
            larger = <uint8_t *> realloc(self.buffer, whole)
            if larger == NULL:
                raise MemoryError
            self.buffer = larger
            self.room = whole
        return whole

    cdef bytes take(self, size_t whole):
        cdef bytes payload = PyBytes_FromStringAndSize(<char *> self.buffer + LENGTH_BYTES, whole - LENGTH_BYTES)
        self.filled -= whole
        memmove(self.buffer, self.buffer + whole, self.filled)
        return payload

    def ended(self):
        """Tell without blocking whether the peer has closed the connection (or it broke)."""
        cdef pollfd peer
        cdef ssize_t got
        if self.broken or self.born != forks:
            return True
        # Not by a look at what can be read: what the server said last is still there when it has gone.
        peer.fd = self.stream.fd
        peer.events = POLLRDHUP
        if poll(&peer, 1, 0) > 0:
            return True
        if self.stream.cipher != NULL and not self.receiving:
            # A farewell of TLS is bytes too. Whoever receives sees it by itself, and bytes that we took from the socket
            # for it would not wake it up.
            got = self.stream.cipher.peek(self.stream.cipher)
            return got == 0 or (got < 0 and errno not in (EAGAIN, EINTR))
        return False

    def start_heartbeat(self, bytes frame not None, double interval):
        """Send *frame* every *interval* seconds from a native thread until ``close``; a full socket skips a beat."""
        if len(frame) > LONGEST_BEAT:
            raise InvalidArgument(f"a heartbeat of {len(frame)} bytes is over {LONGEST_BEAT}")
        self.enter()
        try:
            self.stop_heartbeat()
            self.beat = heartbeat_start(self.stream.fd, self.stream.cipher, &self.sending,
                                        <uint8_t *> PyBytes_AS_STRING(frame), <uint32_t> len(frame), to_ns(interval))
            if self.beat == NULL:
                raise MemoryError("no thread for the heartbeat: the process is at its limit of threads or memory")
        finally:
            self.leave()

    cdef void stop_heartbeat(self) noexcept:
        cdef Heartbeat *beat = self.beat
        self.beat = NULL
        if beat != NULL and self.born == forks:
            with nogil:
                heartbeat_stop(beat)

    cdef void close_socket(self) noexcept:
        cdef int fd = self.stream.fd
        self.stream.fd = -1     # before the GIL is let go: one thread alone closes it, and when the heartbeat has ended
        self.stop_heartbeat()
        if fd >= 0:
            close_fd(fd)

    cpdef close(self):
        """Stop the heartbeat and close the socket. Idempotent; any thread may call it.

        A thread that waits in ``receive`` gets ``ServerLost``. In a forked child only the child's descriptor is closed.
        """
        self.lost = True
        if self.users and self.born == forks:
            shutdown(self.stream.fd, SHUT_RDWR)     # whoever is inside wakes up, and closes it when it leaves
        else:
            self.close_socket()
