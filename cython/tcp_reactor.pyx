"""The tcp data plane of a server: native threads, one epoll each, that serve slab memory over data connections.

The threads run without the GIL from their first instruction to their last. They learn of ended sessions through an
eventfd; what they have to say for the log goes into a small ring that the event loop empties.
"""

from libc.errno cimport ECONNABORTED, EINTR, EMFILE, ENFILE, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import threading

from farpool.native.cipher cimport Encryptor
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.libatomics cimport add_count, load_count, store_count
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
    EPOLL_CTL_DEL,
    EPOLL_CTL_MOD,
    EPOLLEXCLUSIVE,
    EPOLLIN,
    EPOLLOUT,
    IPPROTO_TCP,
    NI_NUMERICHOST,
    NI_NUMERICSERV,
    POLLOUT,
    SO_KEEPALIVE,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOL_SOCKET,
    TCP_NODELAY,
    accept4,
    close_fd,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    eventfd,
    getnameinfo,
    read,
    setsockopt,
    sockaddr,
    sockaddr_storage,
    socklen_t,
    write,
)
from farpool.native.slab_table cimport SlabTable
from farpool.native.tcp_connection cimport (
    DROP,
    EVENT_CUT_SHORT,
    EVENT_DESCRIPTORS,
    EVENT_DISORDER,
    EVENT_GARBAGE,
    EVENT_HANDSHAKE,
    EVENT_IN_CLEAR,
    EVENT_CROWD,
    EVENT_LIMIT,
    EVENT_READ_ONLY,
    EVENT_REFUSED,
    EVENT_SILENT,
    KEEP,
    MOST_EVENTS,
    PEER_BYTES,
    SHARES,
    STAGE_BYTES,
    Connection,
    SessionSlot,
    Shared,
    Worker,
    forget,
    report,
    serve,
)
from farpool.native.tcp_wire cimport SECRET_BYTES

from farpool.native import tcp_wire
from farpool.protocol.errors import InvalidArgument, PoolFull

cdef enum:
    MOST_READY = 64             # events taken from one epoll_wait
    MOST_ACCEPTS = 16           # connections accepted before others have their turn
    MOST_STRANGERS = 128        # of a thread; of more that have not said hello the oldest go
    SESSION_SLOTS = 65536
    TICK_MS = 500               # how often strangers and lost descriptors are looked at
    ACCEPT_PAUSE_MS = 100       # rest of the listener after running out of descriptors
    TURN_BYTES = 32768          # what one tenant's connections move before another's have their turn
    SHARING_TURNS = 1024        # connections served since another tenant's was, until one has it all again

EVENT_NAMES = {
    EVENT_GARBAGE: "garbage",
    EVENT_REFUSED: "refused",
    EVENT_SILENT: "silent",
    EVENT_LIMIT: "connection limit",
    EVENT_DESCRIPTORS: "out of file descriptors",
    EVENT_DISORDER: "out of turn",
    EVENT_CUT_SHORT: "cut short",
    EVENT_HANDSHAKE: "no TLS",
    EVENT_IN_CLEAR: "in clear",
    EVENT_CROWD: "crowd",
    EVENT_READ_ONLY: "read-only",
}


cdef void drop(Worker *worker, Connection *connection) noexcept nogil:
    """Close a connection and free all that it holds."""
    if connection.previous != NULL:
        connection.previous.next = connection.next
    else:
        worker.connections = connection.next
    if connection.next != NULL:
        connection.next.previous = connection.previous
    if not connection.known:
        worker.strangers -= 1
    close_fd(connection.fd)
    forget(connection)
    free(connection)
    add_count(&worker.shared.connections, -1)
    worker.counters.closed += 1


cdef void watch(Worker *worker, Connection *connection) noexcept nogil:
    """Watch for what the connection needs next: room for answers, or more requests."""
    cdef epoll_event event
    cdef uint32_t interest = 0
    if connection.blocked or connection.stalled or connection.again:
        interest |= EPOLLOUT
    if connection.cipher != NULL and connection.cipher.receive_wants == POLLOUT:
        interest |= EPOLLOUT
    if not connection.stalled:
        interest |= EPOLLIN
    if interest != connection.interest:
        event.events = interest
        event.data.ptr = connection
        epoll_ctl(worker.epoll, EPOLL_CTL_MOD, connection.fd, &event)
        connection.interest = interest


cdef void adopt(Worker *worker, int fd, const char *peer) noexcept nogil:
    """Take a new connection in."""
    cdef Connection *connection = <Connection *> calloc(1, sizeof(Connection))
    cdef epoll_event event
    cdef int on = 1
    if connection == NULL:
        close_fd(fd)
        add_count(&worker.shared.connections, -1)
        return
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on))
    connection.fd = fd
    connection.born = now_ns()
    connection.interest = EPOLLIN
    connection.span.parts = &connection.span.single
    memcpy(connection.peer, peer, PEER_BYTES)
    connection.next = worker.connections
    if connection.next != NULL:
        connection.next.previous = connection
    worker.connections = connection
    worker.strangers += 1
    worker.counters.accepted += 1
    event.events = EPOLLIN
    event.data.ptr = connection
    if epoll_ctl(worker.epoll, EPOLL_CTL_ADD, fd, &event) != 0:
        drop(worker, connection)


cdef void name_peer(const sockaddr_storage *address, socklen_t length, char *peer) noexcept nogil:
    cdef char port[8]
    cdef size_t used = 0
    memset(peer, 0, PEER_BYTES)
    if getnameinfo(<const sockaddr *> address, length, peer, PEER_BYTES - 10, port, sizeof(port),
                   NI_NUMERICHOST | NI_NUMERICSERV) == 0:
        while peer[used]:
            used += 1
        peer[used] = b":"
        memcpy(peer + used + 1, port, sizeof(port))


cdef void listen_again(Worker *worker, bint again) noexcept nogil:
    """Watch the listener, or rest from it for a moment: it would be ready all the time without descriptors to spare."""
    cdef epoll_event event
    event.events = EPOLLIN | EPOLLEXCLUSIVE
    event.data.ptr = worker.shared
    worker.accept_again = 0 if again else now_ns() + <int64_t> ACCEPT_PAUSE_MS * 1000000
    epoll_ctl(worker.epoll, EPOLL_CTL_ADD if again else EPOLL_CTL_DEL, worker.shared.listener, &event)


cdef void accept_some(Worker *worker) noexcept nogil:
    cdef sockaddr_storage address
    cdef socklen_t length
    cdef char peer[PEER_BYTES]
    cdef int fd
    for _ in range(MOST_ACCEPTS):
        length = sizeof(address)
        fd = accept4(worker.shared.listener, <sockaddr *> &address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC)
        if fd < 0:
            if errno in (EMFILE, ENFILE):
                memset(peer, 0, sizeof(peer))
                report(worker.shared, EVENT_DESCRIPTORS, peer, load_count(&worker.shared.connections))
                listen_again(worker, False)
            elif errno in (EINTR, ECONNABORTED):
                continue
            return
        name_peer(&address, length, peer)
        if add_count(&worker.shared.connections, 1) > worker.shared.connection_limit:
            add_count(&worker.shared.connections, -1)
            report(worker.shared, EVENT_LIMIT, peer, worker.shared.connection_limit)
            close_fd(fd)
        else:
            adopt(worker, fd, peer)


cdef void look_around(Worker *worker, bint sessions) noexcept nogil:
    """Drop connections of ended sessions (when told so), and strangers that are too many or too slow to say hello."""
    cdef Connection *connection = worker.connections
    cdef Connection *following
    cdef SessionSlot *slot
    cdef int64_t now = now_ns()
    cdef int strangers = 0
    while connection != NULL:           # the newest first
        following = connection.next
        if connection.known:
            slot = &worker.shared.sessions[connection.slot]
            if sessions and (not load_count(&slot.active) or slot.id != connection.session):
                drop(worker, connection)
        elif strangers == MOST_STRANGERS:
            report(worker.shared, EVENT_CROWD, connection.peer, MOST_STRANGERS)
            drop(worker, connection)
        elif now - connection.born > worker.shared.hello_wait:
            report(worker.shared, EVENT_SILENT, connection.peer, 0)
            drop(worker, connection)
        else:
            strangers += 1
        connection = following


cdef int serve_in_turn(Worker *worker, Connection *connection) noexcept nogil:
    """Serve a connection for what is left of its tenant's share of this turn; else it stays ready for the next one."""
    cdef uint32_t share = connection.share
    cdef int64_t budget = INT64_MAX
    cdef int verdict
    if share != worker.last_share:
        worker.last_share = share
        worker.shared_out = SHARING_TURNS
    elif worker.shared_out:
        worker.shared_out -= 1
    if worker.turn_of[share] != worker.turn:
        worker.turn_of[share] = worker.turn
        worker.spent[share] = 0
    if worker.shared_out:
        budget = TURN_BYTES - worker.spent[share]
        if budget <= 0:
            return KEEP
    worker.budget = budget
    verdict = serve(worker, connection)
    worker.spent[share] += budget - worker.budget
    return verdict


cdef void run(Worker *worker) noexcept nogil:
    cdef epoll_event ready[MOST_READY]
    cdef uint64_t wakes
    cdef int count, i, at
    cdef bint sessions
    while not load_count(&worker.shared.stop):
        count = epoll_wait(worker.epoll, ready, MOST_READY, TICK_MS if worker.strangers or worker.accept_again else -1)
        sessions = False
        worker.turn += 1
        for i in range(count):
            at = <int> ((i + worker.turn) % <uint32_t> count)    # another one is the first each time
            if ready[at].data.ptr == worker.shared:
                accept_some(worker)
            elif ready[at].data.ptr == worker:
                read(worker.wake, &wakes, sizeof(wakes))
                sessions = True
            elif serve_in_turn(worker, <Connection *> ready[at].data.ptr) == DROP:
                drop(worker, <Connection *> ready[at].data.ptr)
            else:
                watch(worker, <Connection *> ready[at].data.ptr)
        if worker.accept_again and now_ns() >= worker.accept_again:
            listen_again(worker, True)
        if sessions or worker.strangers:
            look_around(worker, sessions)
    while worker.connections != NULL:
        drop(worker, worker.connections)


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
                  double hello_timeout=5.0, Encryptor encryptor=None):
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
        if self.unused:
            index = self.unused.pop()
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
        """Return a descriptor that is readable once a word was stored to that somebody waits for."""
        return self.shared.changed_fd

    def clear_changes(self):
        """Make it unreadable until the next such store."""
        cdef uint64_t seen
        read(self.shared.changed_fd, &seen, sizeof(seen))

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
