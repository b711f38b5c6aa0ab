"""The tcp data plane of a server: native threads, one epoll each, that serve slab memory over data connections.

The threads run without the GIL (``tcp_worker``). They learn of ended sessions through an eventfd; what they have to
say for the log goes into a small ring that the event loop empties.
"""

from libc.errno cimport errno
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

import threading

from farpool.native.cipher cimport Encryptor
from farpool.native.clock cimport to_ns
from farpool.native.libatomics cimport load_count, store_count
from farpool.native.libpthread cimport (
    pthread_mutex_destroy,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_unlock,
)
from farpool.native.libsocket cimport (
    EFD_CLOEXEC,
    EFD_NONBLOCK,
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLLIN,
    close_fd,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    eventfd,
    read,
    write,
)
from farpool.native.slab_table cimport SlabTable
from farpool.native.tcp_connection cimport (
    EVENT_CROWD,
    EVENT_CUT_SHORT,
    EVENT_DESCRIPTORS,
    EVENT_DISORDER,
    EVENT_GARBAGE,
    EVENT_HANDSHAKE,
    EVENT_IN_CLEAR,
    EVENT_READ_ONLY,
    EVENT_REFUSED,
    EVENT_SERVER_FULL,
    EVENT_SESSION_FULL,
    EVENT_SILENT,
    EVENT_TENANT_FULL,
    MOST_EVENTS,
    SHARES,
    STAGE_BYTES,
    SessionSlot,
    Shared,
    Worker,
)
from farpool.native.tcp_events cimport take_changed
from farpool.native.tcp_wire cimport SECRET_BYTES
from farpool.native.tcp_worker cimport listen_again, run

from farpool.native import tcp_wire
from farpool.protocol.errors import InvalidArgument, PoolFull

cdef enum:
    SESSION_SLOTS = 65536
    MOST_AT_ONCE = 64       # changed attachments before the event loop turns to others

EVENT_NAMES = {
    EVENT_GARBAGE: "garbage",
    EVENT_REFUSED: "refused",
    EVENT_SILENT: "silent",
    EVENT_SERVER_FULL: "connection limit",
    EVENT_SESSION_FULL: "session's connection limit",
    EVENT_TENANT_FULL: "tenant's connection limit",
    EVENT_DESCRIPTORS: "out of file descriptors",
    EVENT_DISORDER: "out of turn",
    EVENT_CUT_SHORT: "cut short",
    EVENT_HANDSHAKE: "no TLS",
    EVENT_IN_CLEAR: "in clear",
    EVENT_CROWD: "crowd",
    EVENT_READ_ONLY: "read-only",
}


cdef class TcpReactor:
    """The tcp data plane of a server; see the stub for the contract."""

    cdef Shared *shared
    cdef Worker *workers
    cdef int count
    cdef SlabTable table            # keeps the entries alive
    cdef Encryptor encryptor        # keeps the keys alive
    cdef list threads
    cdef list unused                # session slots that may be handed out again

    def __cinit__(self, SlabTable table not None, int listener, *, int threads=1, uint32_t max_connections=4096,
                  uint32_t max_session_connections=64, double hello_timeout=5.0, Encryptor encryptor=None):
        cdef int i
        if not 1 <= threads <= 64:
            raise InvalidArgument(f"a data plane has 1 to 64 threads, not {threads}")
        self.table = table
        self.threads = []
        self.unused = []
        self.shared = <Shared *> calloc(1, sizeof(Shared))
        self.workers = <Worker *> calloc(threads, sizeof(Worker))
        if self.shared == NULL or self.workers == NULL:
            raise MemoryError
        self.count = threads
        self.shared.sessions = <SessionSlot *> calloc(SESSION_SLOTS, sizeof(SessionSlot))
        self.shared.entries = table.entries
        self.shared.capacity = table.capacity
        self.shared.listener = listener
        self.shared.connection_limit = max_connections
        self.shared.session_limit = max_session_connections
        self.shared.hello_wait = to_ns(hello_timeout)
        self.encryptor = encryptor
        if encryptor is not None:
            self.shared.keys = encryptor.keys
            self.shared.accept = encryptor.accept
        pthread_mutex_init(&self.shared.events_lock, NULL)
        self.shared.event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        self.shared.changed_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        for i in range(threads):
            self.workers[i].shared = self.shared
            self.workers[i].epoll = epoll_create1(EPOLL_CLOEXEC)
            self.workers[i].wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
            self.workers[i].stage = <uint8_t *> malloc(STAGE_BYTES)
            if self.workers[i].stage == NULL or self.shared.sessions == NULL:
                raise MemoryError
            if min(self.workers[i].epoll, self.workers[i].wake, self.shared.event_fd, self.shared.changed_fd) < 0:
                raise OSError(errno, "no file descriptor for the data plane; raise RLIMIT_NOFILE")

    def __dealloc__(self):
        cdef int i
        self.stop()
        for i in range(self.count):
            if self.workers[i].epoll > 0:
                close_fd(self.workers[i].epoll)
            if self.workers[i].wake > 0:
                close_fd(self.workers[i].wake)
            free(self.workers[i].stage)
        free(self.workers)
        if self.shared != NULL:
            if self.shared.event_fd > 0:
                close_fd(self.shared.event_fd)
            if self.shared.changed_fd > 0:
                close_fd(self.shared.changed_fd)
            pthread_mutex_destroy(&self.shared.events_lock)
            free(self.shared.sessions)
            free(self.shared)

    def run_worker(self, int index):
        """Serve until ``stop``; the body of one thread."""
        cdef Worker *worker = &self.workers[index]
        with nogil:
            run(worker)

    def start(self):
        """Start the threads."""
        cdef int i
        cdef epoll_event event
        for i in range(self.count):
            event.events = EPOLLIN
            event.data.ptr = &self.workers[i]
            epoll_ctl(self.workers[i].epoll, EPOLL_CTL_ADD, self.workers[i].wake, &event)
            listen_again(&self.workers[i], True)
            thread = threading.Thread(target=self.run_worker, args=(i,), name=f"farpool-tcp-{i}", daemon=True)
            self.threads.append(thread)
            thread.start()

    cdef void wake_all(self) noexcept:
        cdef uint64_t one = 1
        cdef int i
        for i in range(self.count):
            write(self.workers[i].wake, &one, sizeof(one))

    cpdef stop(self):
        """End the threads and close every data connection. Idempotent."""
        if self.shared == NULL or self.threads is None:
            return
        store_count(&self.shared.stop, 1)
        self.wake_all()
        for thread in self.threads:
            thread.join()
        self.threads = []

    def admit(self, uint64_t session, bytes secret not None, bint encrypted=False, uint32_t share=0):
        """Let *session* open data connections with *secret* (32 bytes); return the slot that its hello names."""
        cdef SessionSlot *slot
        cdef uint32_t index
        if len(secret) != SECRET_BYTES:
            raise InvalidArgument(f"a session's secret has {SECRET_BYTES} bytes, not {len(secret)}")
        index = self.take_unused()
        if index < SESSION_SLOTS:
            pass
        elif self.shared.session_count < SESSION_SLOTS:
            index = self.shared.session_count
        else:
            raise PoolFull(f"all {SESSION_SLOTS} sessions of the tcp data plane are in use; close some")
        slot = &self.shared.sessions[index]
        slot.id = session
        slot.encrypted = encrypted
        slot.share = share % SHARES
        memcpy(slot.secret, <const char *> secret, SECRET_BYTES)
        store_count(&slot.active, 1)
        if index == self.shared.session_count:
            store_count(&self.shared.session_count, index + 1)
        return index

    cdef uint32_t take_unused(self) except? SESSION_SLOTS:
        """Return a slot that nobody has any more, or SESSION_SLOTS: its last connections are closed a moment later."""
        cdef Py_ssize_t i
        cdef uint32_t index
        for i in range(len(self.unused)):
            index = self.unused[i]
            if load_count(&self.shared.sessions[index].connections) == 0:
                del self.unused[i]
                return index
        return SESSION_SLOTS

    def share_out(self, bint several):
        """Leave room for others' connections, or let one tenant have all."""
        store_count(&self.shared.several, several)

    def expel(self, uint32_t slot):
        """Close the session's data connections soon, and refuse new ones at once."""
        if slot >= self.shared.session_count or not load_count(&self.shared.sessions[slot].active):
            return
        store_count(&self.shared.sessions[slot].active, 0)
        self.unused.append(slot)
        self.wake_all()

    def fileno(self):
        """Return a descriptor that is readable when ``events`` has some."""
        return self.shared.event_fd

    def changes(self):
        """Return a descriptor that is readable when ``changed`` has some."""
        return self.shared.changed_fd

    def changed(self):
        """Return and forget handles of attachments with a word that somebody waits for, and that was stored to."""
        return take_changed(self.shared, MOST_AT_ONCE)

    def events(self):
        """Return and forget what happened since the last call: (kind, peer's address, number, session)."""
        cdef uint64_t seen
        cdef list happened = []
        read(self.shared.event_fd, &seen, sizeof(seen))
        pthread_mutex_lock(&self.shared.events_lock)
        while self.shared.event_count:
            event = self.shared.events[self.shared.first_event]
            peer = (<bytes> event.peer).decode("ascii", "replace")
            happened.append((EVENT_NAMES[event.kind], peer, event.number, event.session))
            self.shared.first_event = (self.shared.first_event + 1) % MOST_EVENTS
            self.shared.event_count -= 1
        pthread_mutex_unlock(&self.shared.events_lock)
        return happened

    def overlooked(self):
        """Return and forget how many refusals found no place among the events."""
        pthread_mutex_lock(&self.shared.events_lock)
        cdef uint64_t count = self.shared.overlooked
        self.shared.overlooked = 0
        pthread_mutex_unlock(&self.shared.events_lock)
        return count

    def counters(self):
        """Return the counters since the start: operations by name, bytes_read, bytes_written, errors, connections."""
        cdef int i
        cdef dict total = dict.fromkeys([*tcp_wire.OPERATIONS, "bytes_read", "bytes_written", "errors", "accepted"], 0)
        for i in range(self.count):
            for name, number in tcp_wire.OPERATIONS.items():
                total[name] += self.workers[i].counters.operations[<int> number]
            total["bytes_read"] += self.workers[i].counters.bytes_read
            total["bytes_written"] += self.workers[i].counters.bytes_written
            total["errors"] += self.workers[i].counters.errors
            total["accepted"] += self.workers[i].counters.accepted
        total["connections"] = load_count(&self.shared.connections)
        return total
