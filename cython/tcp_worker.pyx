"""One thread of the tcp data plane: it accepts connections, gives each tenant its turn, and looks around for those
that must go.

It runs without the GIL from its first instruction to its last; what it is told of ended sessions comes through an
eventfd.
"""

from libc.errno cimport ECONNABORTED, EINTR, EMFILE, ENFILE, errno
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from farpool.native.clock cimport now_ns
from farpool.native.libatomics cimport add_count, load_count
from farpool.native.libsocket cimport (
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
    TCP_KEEPCNT,
    TCP_KEEPIDLE,
    TCP_KEEPINTVL,
    TCP_NODELAY,
    accept4,
    close_fd,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    getnameinfo,
    read,
    setsockopt,
    sockaddr,
    sockaddr_storage,
    socklen_t,
)
from farpool.native.tcp_admission cimport dismiss
from farpool.native.tcp_connection cimport (
    DROP,
    EVENT_CROWD,
    EVENT_DESCRIPTORS,
    EVENT_SILENT,
    KEEP,
    PEER_BYTES,
    Connection,
    SessionSlot,
    Worker,
    forget,
    report,
    serve,
)

cdef enum:
    MOST_READY = 64             # events taken from one epoll_wait
    MOST_ACCEPTS = 16           # connections accepted before others have their turn
    MOST_STRANGERS = 128        # of a thread; of more that have not said hello the oldest go
    TICK_MS = 500               # how often strangers and lost descriptors are looked at
    ACCEPT_PAUSE_MS = 100       # rest of the listener after running out of descriptors
    TURN_BYTES = 32768          # what one tenant's connections move before another's have their turn
    SHARING_TURNS = 1024        # connections served since another tenant's was, until one has it all again
    # A connection whose peer is lost counts against its session for two minutes.
    KEEPALIVE_IDLE = 60         # seconds of silence
    KEEPALIVE_INTERVAL = 15     # seconds from one probe to the next
    KEEPALIVE_PROBES = 4


cdef void drop(Worker *worker, Connection *connection) noexcept nogil:
    """Close a connection and free all that it holds."""
    if connection.previous != NULL:
        connection.previous.next = connection.next
    else:
        worker.connections = connection.next
    if connection.next != NULL:
        connection.next.previous = connection.previous
    dismiss(worker, connection)
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
    cdef int on = 1, idle = KEEPALIVE_IDLE, interval = KEEPALIVE_INTERVAL, probes = KEEPALIVE_PROBES
    if connection == NULL:
        close_fd(fd)
        return
    add_count(&worker.shared.connections, 1)
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval))
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes))
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
    """Serve until the reactor stops, and drop every connection then."""
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
