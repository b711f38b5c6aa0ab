"""Who may open a data connection: whoever knows a session's secret, while there is room for one more.

There is room for a bounded number of one session's connections, and of all together. Where there are several tenants
each may have as many as are still free, so that none shuts another out, nor do several that act together.
"""

from libc.stdint cimport uint32_t

from farpool.native.libatomics cimport add_count, load_count
from farpool.native.operation cimport (
    STATUS_OK,
    STATUS_REFUSED,
    STATUS_SERVER_FULL,
    STATUS_SESSION_FULL,
    STATUS_TENANT_FULL,
    STATUS_VERSION,
)
from farpool.native.tcp_connection cimport (
    EVENT_IN_CLEAR,
    EVENT_REFUSED,
    EVENT_SERVER_FULL,
    EVENT_SESSION_FULL,
    EVENT_TENANT_FULL,
    SessionSlot,
    Shared,
)
from farpool.native.tcp_wire cimport SECRET_BYTES, WIRE_VERSION


cdef Admission admit(Worker *worker, Connection *connection, const Request *request) noexcept nogil:
    """Check a hello; a connection that may stay is known from now on, until ``dismiss``."""
    cdef Shared *shared = worker.shared
    cdef Admission admission = Admission(STATUS_REFUSED, 0, EVENT_REFUSED, request.reserved, 0)
    cdef SessionSlot *slot
    cdef uint32_t of_session
    cdef bint knows
    if request.reserved != WIRE_VERSION:
        admission.status = STATUS_VERSION
        admission.detail = WIRE_VERSION
        return admission
    if request.handle >= load_count(&shared.session_count):
        return admission
    slot = &shared.sessions[request.handle]
    of_session = add_count(&slot.connections, 1)    # from here on the slot is given to no other session
    knows = knows_secret(slot, request)
    if not knows:
        pass
    elif slot.encrypted and connection.cipher == NULL:
        admission.event = EVENT_IN_CLEAR
    elif of_session > shared.session_limit:
        admission = refusal(STATUS_SESSION_FULL, EVENT_SESSION_FULL, shared.session_limit)
    else:
        admission = take_place(shared, slot.share)
    admission.session = slot.id if knows else 0
    if admission.status != STATUS_OK:
        add_count(&slot.connections, -1)
        return admission
    connection.known = True
    connection.slot = request.handle
    connection.share = slot.share
    connection.session = slot.id
    worker.strangers -= 1
    return admission


cdef void dismiss(Worker *worker, Connection *connection) noexcept nogil:
    """Give the place of a connection that ends to others."""
    if connection.known:
        leave_place(worker.shared, connection.share)
        add_count(&worker.shared.sessions[connection.slot].connections, -1)
    else:
        worker.strangers -= 1


cdef bint knows_secret(const SessionSlot *slot, const Request *request) noexcept nogil:
    """Compare in constant time."""
    cdef const unsigned char *secret = <const unsigned char *> &request.generation
    cdef bint active = load_count(&slot.active) != 0    # first: until it is, the secret is being written
    cdef unsigned char difference = 0
    cdef int i
    for i in range(SECRET_BYTES):
        difference |= secret[i] ^ slot.secret[i]
    return active and difference == 0


cdef Admission take_place(Shared *shared, uint32_t share) noexcept nogil:
    """Count one more connection of a tenant, if there is room for it."""
    cdef uint32_t all_of_them = add_count(&shared.known, 1)
    cdef uint32_t of_tenant = add_count(&shared.known_of[share], 1)
    if all_of_them > shared.connection_limit:
        leave_place(shared, share)
        return refusal(STATUS_SERVER_FULL, EVENT_SERVER_FULL, shared.connection_limit)
    if of_tenant > 1 and of_tenant > shared.connection_limit - all_of_them and load_count(&shared.several):
        leave_place(shared, share)
        return refusal(STATUS_TENANT_FULL, EVENT_TENANT_FULL, of_tenant - 1)
    return Admission(STATUS_OK, WIRE_VERSION, 0, 0, 0)


cdef void leave_place(Shared *shared, uint32_t share) noexcept nogil:
    add_count(&shared.known, -1)
    add_count(&shared.known_of[share], -1)


cdef Admission refusal(int status, int event, uint32_t number) noexcept nogil:
    return Admission(status, number, event, number, 0)
