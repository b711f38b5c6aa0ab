from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from farpool.native.cipher cimport Cipher
from farpool.native.libpthread cimport pthread_mutex_t
from farpool.native.operation cimport OP_LAST, Part
from farpool.native.slab_table cimport Entry
from farpool.native.tcp_wire cimport SECRET_BYTES, Answer, Request

cdef enum:
    STAGE_BYTES = 131072        # input of one receive: a READV's header and all its parts fit twice
    MOST_REPLIES = 64           # answers a connection may owe before we stop reading its requests
    PEER_BYTES = 64
    MOST_EVENTS = 256
    MOST_CHANGED = 1024         # attachments that are shown to the event loop as changed; more it finds by itself
    SHARES = 1024               # of the worker's time: one a tenant, several tenants one if there are more of them

cdef enum Verdict:
    KEEP = 0
    DROP = -1

cdef enum EventKind:
    EVENT_GARBAGE = 1           # bytes that are not our protocol: the first two as a number
    EVENT_REFUSED = 2           # a hello with an unknown session, a wrong secret or another version
    EVENT_SILENT = 3            # no hello in time
    EVENT_SERVER_FULL = 4       # as many connections as there may be: their number
    EVENT_DESCRIPTORS = 5       # no file descriptor left
    EVENT_DISORDER = 6          # a request that cannot be, or not now: its operation
    EVENT_CUT_SHORT = 7         # a stranger left in the middle of its hello: the bytes that came
    EVENT_HANDSHAKE = 8         # no TLS with a stranger: the library's number of the reason
    EVENT_IN_CLEAR = 9          # a hello in clear for a session that must be encrypted
    EVENT_CROWD = 10            # no hello yet, and too many newer ones wait as well; their number
    EVENT_SESSION_FULL = 11     # as many connections as a session may have: their number
    EVENT_TENANT_FULL = 12      # as many connections of one tenant as are left for others: their number
    EVENT_READ_ONLY = 13        # a connection's first change of what its session may only read: the memory's generation

cdef struct Event:
    int kind
    uint64_t number
    uint64_t session            # 0 where it is not known
    char peer[PEER_BYTES]

cdef struct SessionSlot:        # which session a hello's slot stands for
    uint64_t id
    uint32_t active
    uint32_t connections        # that name it, those of an earlier session among them: it is given to another without
    bint encrypted              # its connections must be
    uint32_t share              # its tenant's
    uint8_t secret[SECRET_BYTES]

cdef struct Counters:           # one writer each: the worker that owns them
    uint64_t operations[OP_LAST + 1]
    uint64_t bytes_read
    uint64_t bytes_written
    uint64_t errors
    uint64_t accepted
    uint64_t closed

cdef struct Shared:             # what the workers of one reactor share
    Entry *entries
    uint32_t capacity
    SessionSlot *sessions
    uint32_t session_count
    uint32_t connections        # open now
    uint32_t known              # of them, those that have said hello
    uint32_t known_of[SHARES]   # of these, a tenant's
    uint32_t connection_limit   # of those that have said hello: of all
    uint32_t session_limit      # of one session's
    uint32_t several            # whether there are several tenants, of whom none may have it all
    int listener
    int64_t hello_wait          # ns
    uint32_t stop
    pthread_mutex_t events_lock
    Event events[MOST_EVENTS]
    uint32_t first_event
    uint32_t event_count
    uint64_t overlooked         # refusals that found no place among the events
    int event_fd
    uint32_t changed[MOST_CHANGED]      # handles of attachments with a watched word that was stored to
    uint32_t first_changed
    uint32_t changed_count
    int changed_fd              # eventfd: there are some
    void *keys                  # what connections are encrypted with, if their first byte asks for it
    Cipher *(*accept)(void *keys, int fd) noexcept nogil    # NULL: none is

cdef struct Worker:             # one thread
    Shared *shared
    int epoll
    int wake                    # eventfd: stop, or look for ended sessions
    uint8_t *stage
    Counters counters
    Connection *connections
    uint32_t strangers          # connections that have not said hello
    int64_t accept_again        # when to listen again after running out of descriptors; 0 while listening
    int64_t budget              # bytes that the connection which is served may still move before others have their turn
    uint32_t last_share         # whose connection was served last
    uint32_t shared_out         # while over 0, several tenants are at work: each has TURN_BYTES a turn
    uint32_t turn
    uint32_t turn_of[SHARES]    # for which turn spent[] holds
    int64_t spent[SHARES]

cdef struct Span:               # the parts of one read or write, and how far it has come
    Part single
    Part *parts                 # &single, or from malloc
    uint32_t count
    uint32_t index
    uint64_t done               # bytes of parts[index]

cdef struct Reply:              # an answer that is not wholly sent
    Answer answer
    uint32_t header_sent
    uint64_t generation
    Span span

cdef struct Connection:
    int fd
    Cipher *cipher              # NULL: in clear
    bint again                  # input is left that the socket does not know of: go on although nothing comes
    uint32_t interest           # what epoll watches for now
    bint known                  # has said hello
    bint blocked                # the socket takes no more answers
    bint stalled                # no place for another answer, or a write waits for reads before it
    uint32_t slot
    uint32_t share              # its tenant's; 0 before the hello
    uint64_t session
    int64_t born
    bint forbidden              # has tried to change what it may only read
    bint writing                # a payload is coming in
    uint8_t status              # what the write will be answered with
    bint watched                # somebody waits for a word of the slab that it goes to
    Request request
    Span span
    uint64_t left               # bytes of the payload that have not come
    uint8_t *spill              # input that could not be dealt with yet
    size_t spilled
    Reply replies[MOST_REPLIES]
    uint32_t first
    uint32_t owed
    uint32_t reads              # answers owed that carry slab bytes
    Connection *previous
    Connection *next
    char peer[PEER_BYTES]

cdef int serve(Worker *worker, Connection *connection) noexcept nogil
cdef void forget(Connection *connection) noexcept nogil
