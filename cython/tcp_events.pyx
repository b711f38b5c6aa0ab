"""What the threads of the tcp data plane have to say to the event loop: two bounded rings, each with an eventfd.

One has events for the log. The other has attachments that were stored to while somebody waits for a word of their slab.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from farpool.native.libatomics cimport add_count, store_count
from farpool.native.libpthread cimport pthread_mutex_lock, pthread_mutex_unlock
from farpool.native.libsocket cimport read, write
from farpool.native.tcp_connection cimport (
    EVENT_IN_CLEAR,
    EVENT_READ_ONLY,
    EVENT_REFUSED,
    MOST_CHANGED,
    MOST_EVENTS,
    PEER_BYTES,
    Event,
)


cdef void report(Shared *shared, int kind, const char *peer, uint64_t number, uint64_t session=0) noexcept nogil:
    """Leave an event for the log; the oldest are kept when nobody reads them, and of refusals the rest is counted."""
    cdef Event *event
    cdef uint64_t one = 1
    pthread_mutex_lock(&shared.events_lock)
    if shared.event_count < MOST_EVENTS:
        event = &shared.events[(shared.first_event + shared.event_count) % MOST_EVENTS]
        event.kind = kind
        event.number = number
        event.session = session
        memcpy(event.peer, peer, PEER_BYTES)
        shared.event_count += 1
    elif kind in (EVENT_REFUSED, EVENT_IN_CLEAR, EVENT_READ_ONLY):
        shared.overlooked += 1
    pthread_mutex_unlock(&shared.events_lock)
    write(shared.event_fd, &one, sizeof(one))


cdef void show_changed(Shared *shared, Entry *entry) noexcept nogil:
    """Tell that a watched word was stored to; an attachment that waits to be shown already is not told of again."""
    cdef uint64_t one = 1
    cdef uint32_t place
    if add_count(&entry.changed, 1) != 1:
        return
    pthread_mutex_lock(&shared.events_lock)
    if shared.changed_count < MOST_CHANGED:
        place = (shared.first_changed + shared.changed_count) % MOST_CHANGED
        shared.changed[place] = <uint32_t> (entry - shared.entries)
        shared.changed_count += 1
    else:
        store_count(&entry.changed, 0)
    pthread_mutex_unlock(&shared.events_lock)
    write(shared.changed_fd, &one, sizeof(one))


cdef list take_changed(Shared *shared, int most):
    """Return and forget the oldest handles that were shown; the descriptor stays readable while there are more."""
    cdef uint64_t seen, one = 1
    cdef uint32_t handle
    cdef list handles = []
    read(shared.changed_fd, &seen, sizeof(seen))
    pthread_mutex_lock(&shared.events_lock)
    while shared.changed_count and len(handles) < most:
        handle = shared.changed[shared.first_changed]
        # Before anyone looks at its words: what is stored from here on is shown again.
        store_count(&shared.entries[handle].changed, 0)
        handles.append(handle)
        shared.first_changed = (shared.first_changed + 1) % MOST_CHANGED
        shared.changed_count -= 1
    if shared.changed_count:
        write(shared.changed_fd, &one, sizeof(one))
    pthread_mutex_unlock(&shared.events_lock)
    return handles
