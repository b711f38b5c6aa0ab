"""A provider that completes at once, where a device would be: what a work request costs up to the doorbell.

For the benchmark ``farpool.perf.posting`` alone. Everything above the two calls of a provider that a transfer makes is
what works on a device; no byte moves. The counts are kept without a lock: one thread at a time.
"""

from libc.stdint cimport uint64_t

import mmap

from farpool.native.checks import buffer_extent
from farpool.native.fork cimport forks
from farpool.native.libverbs cimport (
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    ibv_context,
    ibv_cq,
    ibv_mr,
    ibv_qp,
    ibv_send_wr,
    ibv_wc,
)
from farpool.native.rdma_lane cimport Lane
from farpool.native.rdma_region cimport RdmaPeer, RdmaRegion
from farpool.native.verbs cimport MemoryRegion, QueuePair
from farpool.native.verbs_limits cimport BareVerbs

cdef enum:
    DEPTH = 128             # as the transport's lanes
    INLINE = 220
    MAX_MESSAGE = 1 << 30
    KEY = 0x5ab
    STAGING_BYTES = 1 << 18

cdef ibv_context context
cdef ibv_cq queue
cdef ibv_qp pair
cdef ibv_mr memory

cdef uint64_t doorbells = 0, requests = 0, signalled = 0, nbytes_asked = 0


cdef int post_send(ibv_qp *qp, ibv_send_wr *request, ibv_send_wr **failed) noexcept nogil:
    """Take a chain of work requests, as a provider would walk it."""
    global doorbells, requests, signalled, nbytes_asked
    doorbells += 1
    while request != NULL:
        requests += 1
        nbytes_asked += request.sg_list.length
        if request.send_flags & IBV_SEND_SIGNALED:
            signalled += 1
        request = request.next
    return 0


cdef int poll_cq(ibv_cq *cq, int entries, ibv_wc *completions) noexcept nogil:
    """Say that what was posted has succeeded."""
    completions[0].status = IBV_WC_SUCCESS
    return 1


context.ops.post_send = post_send
context.ops.poll_cq = poll_cq
queue.context = pair.context = &context
memory.lkey = memory.rkey = KEY


cdef QueuePair make_pair():
    cdef QueuePair made = QueuePair.__new__(QueuePair)
    made.qp = &pair
    made.cq = &queue
    made.depth = DEPTH
    made.max_inline = INLINE
    made.born = ~forks      # as in a forked child: nothing is destroyed
    return made


cdef MemoryRegion make_memory(uint64_t nbytes):
    cdef MemoryRegion made = MemoryRegion.__new__(MemoryRegion)
    made.owner = mmap.mmap(-1, nbytes)
    made.address, made.nbytes = buffer_extent(made.owner)
    made.mr = &memory
    made.born = ~forks
    return made


def instant_region(Py_ssize_t nbytes):
    """Return a region of *nbytes* whose operations are done when they are posted; no byte moves."""
    cdef MemoryRegion registered = make_memory(STAGING_BYTES)
    peer = RdmaPeer(
        lambda seconds: Lane(make_pair(), make_memory(STAGING_BYTES), 0.0),
        lambda: True,
        lambda owner, address, nbytes: registered,
        MAX_MESSAGE,
    )
    return RdmaRegion(peer, 0, KEY, 1, nbytes, True, True, 0, "of no device", 10.0, None, None)


def instant_verbs(Py_ssize_t nbytes):
    """Return the loops in C over the same provider: the limit."""
    cdef BareVerbs made = BareVerbs.__new__(BareVerbs)
    made.near = make_pair()
    made.local = make_memory(nbytes)
    made.remote = make_memory(nbytes)
    return made


def posted():
    """Return how many doorbells, work requests, signalled ones and bytes there were in this process."""
    return doorbells, requests, signalled, nbytes_asked
