"""The limit of the rdma transport: bare verbs between two queue pairs of this process.

The loops use libibverbs alone; our owner objects only set the connection up. No GIL, no allocation, no check in them.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

import mmap

from farpool.native.checks import buffer_extent
from farpool.native.clock cimport now_ns, to_ns
from farpool.native.libverbs cimport (
    IBV_SEND_SIGNALED,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    aim_atomic,
    aim_rdma,
    ibv_poll_cq,
    ibv_post_send,
    ibv_send_wr,
    ibv_sge,
    ibv_wc,
)
from farpool.native.verbs cimport Device, MemoryRegion, ProtectionDomain, QueuePair

from farpool.native import verbs
from farpool.protocol.errors import InvalidArgument, OutOfBounds, ServerLost

cdef enum:
    DEEPEST = 128           # requests in one chain
    READS = 16              # that the device runs at once


cdef class BareVerbs:
    """Two connected queue pairs of one device in this process, and loops in C over them; see the stub."""

    def __init__(self, str device not None, int port, int gid_index, size_t nbytes):
        cdef int access = verbs.LOCAL | verbs.READ | verbs.WRITE | verbs.ATOMIC
        verbs.prepare_for_fork()    # too late once memory is registered, and the transport wants it too
        self.device = Device(device, port)
        limits, state = self.device.limits(), self.device.port_state()
        self.domain = ProtectionDomain(self.device)
        self.near = QueuePair(self.domain, depth=DEEPEST)
        self.far = QueuePair(self.domain, depth=1)
        self.local = self.map(nbytes, access)
        self.remote = self.map(nbytes, access)
        reads = max(1, min(READS, limits["max_reads_in"], limits["max_reads_out"]))
        for one, other in ((self.near, self.far), (self.far, self.near)):
            one.connect(number=other.number, psn=other.psn, gid=self.device.gid(gid_index), lid=state["lid"],
                        gid_index=gid_index, mtu=state["mtu"], reads_in=reads, reads_out=reads, remote_access=access)

    cdef MemoryRegion map(self, size_t nbytes, int access):
        memory = mmap.mmap(-1, nbytes)
        address, size = buffer_extent(memory)
        return self.domain.register(memory, address, size, access)

    def move(self, bint inward, const int64_t[::1] offsets not None, uint32_t nbytes, int batch, int calls,
             int64_t[::1] samples not None, double seconds):
        """Read or write *batch* parts of *nbytes* at each offset in turn, *calls* batches a sample."""
        if not 1 <= batch <= DEEPEST or calls < 1 or not offsets.shape[0]:
            raise InvalidArgument(f"a batch has 1 to {DEEPEST} parts, not {batch}")
        if nbytes * <uint64_t> batch > self.local.nbytes:
            raise OutOfBounds(f"{batch} parts of {nbytes} bytes are more than {self.local.nbytes}")
        cdef int opcode = IBV_WR_RDMA_READ if inward else IBV_WR_RDMA_WRITE
        return self.run(opcode, offsets, nbytes, batch, calls, samples, seconds)

    def add(self, const int64_t[::1] offsets not None, int calls, int64_t[::1] samples not None, double seconds):
        """Add 1 to the word at each offset in turn, *calls* additions a sample."""
        return self.run(IBV_WR_ATOMIC_FETCH_AND_ADD, offsets, 8, 1, calls, samples, seconds)

    cdef Py_ssize_t run(self, int opcode, const int64_t[::1] offsets, uint32_t nbytes, int batch, int calls,
                        int64_t[::1] samples, double seconds) except -1:
        cdef ibv_send_wr requests[DEEPEST]
        cdef ibv_sge pieces[DEEPEST]
        cdef int64_t begin, now, end = now_ns() + to_ns(seconds)
        cdef Py_ssize_t count = 0, turn = 0, i
        cdef int failed = 0
        for i in range(offsets.shape[0]):
            if offsets[i] < 0 or offsets[i] + nbytes > self.remote.nbytes:
                raise OutOfBounds(f"{nbytes} bytes at {offsets[i]} are not within {self.remote.nbytes}")
        with nogil:
            while count < samples.shape[0]:
                begin = now_ns()
                for _ in range(calls):
                    for i in range(batch):
                        pieces[i].addr = self.local.address + i * nbytes
                        pieces[i].length = nbytes
                        pieces[i].lkey = self.local.mr.lkey
                        requests[i].wr_id = i
                        requests[i].sg_list = &pieces[i]
                        requests[i].num_sge = 1
                        requests[i].opcode = opcode
                        requests[i].send_flags = IBV_SEND_SIGNALED if i == batch - 1 else 0
                        requests[i].next = NULL if i == batch - 1 else &requests[i + 1]
                        if opcode == IBV_WR_ATOMIC_FETCH_AND_ADD:
                            aim_atomic(&requests[i], self.remote.address + offsets[turn], self.remote.mr.rkey, 1, 0)
                        else:
                            aim_rdma(&requests[i], self.remote.address + offsets[turn], self.remote.mr.rkey)
                        turn = (turn + 1) % offsets.shape[0]
                    failed = finish(self.near, requests)
                    if failed:
                        break
                now = now_ns()
                samples[count] = now - begin
                count += 1
                if failed or now >= end:
                    break
        if failed:
            raise ServerLost("the loopback queue pair of the limit has failed")
        return count

    def close(self):
        """Destroy the queue pairs and close the device. Idempotent."""
        if self.device is not None:
            self.device.close()


cdef bint finish(QueuePair pair, ibv_send_wr *requests) noexcept nogil:
    """Post a chain and poll for its completion; True if it failed."""
    cdef ibv_send_wr *failed = NULL
    cdef ibv_wc completion
    cdef int got
    if ibv_post_send(pair.qp, requests, &failed) != 0:
        return True
    while True:
        got = ibv_poll_cq(pair.cq, 1, &completion)
        if got < 0 or (got > 0 and completion.status != IBV_WC_SUCCESS):
            return True
        if got > 0:
            return False
