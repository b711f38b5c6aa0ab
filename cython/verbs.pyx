"""Owner objects for libibverbs: a device, its protection domains, memory regions and reliable connections.

One object owns one C handle. Parents close their children first, children keep their parent alive, ``close`` may be
called twice. Nothing here waits, so that the GIL is kept, but for registration, which pins pages. A forked child shares
the parent's device descriptor: there nothing is destroyed, since it would be destroyed in the parent too.

``no_gc_clear``: the garbage collector would take a child's parent from it, and close the device below its queue pairs.
"""

from cython cimport no_gc_clear

from libc.errno cimport EFAULT, EINVAL, ENOMEM, EOPNOTSUPP, EPERM, errno
from libc.string cimport memcpy, memset

import os
import secrets
import weakref

from farpool.native.fork cimport forks
from farpool.native.libverbs cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_ATOMIC_NONE,
    IBV_FORK_UNNEEDED,
    IBV_PORT_ACTIVE,
    IBV_QP_ACCESS_FLAGS,
    IBV_QP_AV,
    IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC,
    IBV_QP_MAX_QP_RD_ATOMIC,
    IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX,
    IBV_QP_PORT,
    IBV_QP_RETRY_CNT,
    IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN,
    IBV_QP_SQ_PSN,
    IBV_QP_STATE,
    IBV_QP_TIMEOUT,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPT_RC,
    ibv_alloc_pd,
    ibv_close_device,
    ibv_create_comp_channel,
    ibv_create_cq,
    ibv_create_qp,
    ibv_dealloc_pd,
    ibv_dereg_mr,
    ibv_destroy_comp_channel,
    ibv_destroy_cq,
    ibv_destroy_qp,
    ibv_device,
    ibv_device_attr,
    ibv_fork_init,
    ibv_is_fork_initialized,
    ibv_free_device_list,
    ibv_get_device_list,
    ibv_get_device_name,
    ibv_gid,
    ibv_modify_qp,
    ibv_open_device,
    ibv_port_attr,
    ibv_qp_attr,
    ibv_qp_init_attr,
    ibv_query_device,
    ibv_query_gid,
    ibv_query_port,
    ibv_query_qp,
    ibv_reg_mr,
)

from farpool.protocol.errors import TransportUnavailable

cdef enum:
    ACK_TIMEOUT = 14        # 4.096 us * 2**14 = 67 ms until a packet is sent again (InfiniBand spec, 9.7.6.1.3)
    RETRIES = 6             # and how often; 7, the most that the field holds, is for ever on soft-RoCE
    RNR_TIMER = 12          # 0.64 ms; nothing of ours needs a receive, but the field must be set
    HOPS = 64

LOCAL = IBV_ACCESS_LOCAL_WRITE
READ = IBV_ACCESS_REMOTE_READ
WRITE = IBV_ACCESS_REMOTE_WRITE
ATOMIC = IBV_ACCESS_REMOTE_ATOMIC


def prepare_for_fork():
    """Let this process fork although memory is registered (ibv_fork_init). Once, before any device is opened."""
    # A kernel from 5.12 on copies registered pages when a process forks. For an older one libibverbs marks them by
    # madvise, page by page, which a DAX device's memory refuses: only whole units of its alignment can be marked.
    if ibv_is_fork_initialized() == IBV_FORK_UNNEEDED:
        return
    failed = ibv_fork_init()
    if failed:
        raise TransportUnavailable(f"libibverbs cannot prepare for a fork: {os.strerror(failed)}")


def device_names():
    """Return the names of the RDMA devices that libibverbs finds."""
    cdef int count = 0, i
    cdef ibv_device **devices = ibv_get_device_list(&count)
    if devices == NULL:
        return []
    try:
        return [ibv_get_device_name(devices[i]).decode() for i in range(count)]
    finally:
        ibv_free_device_list(devices)


@no_gc_clear
cdef class Device:
    """An open RDMA device and one of its ports; see the stub for the contract."""

    def __cinit__(self, str name not None, int port=1):
        cdef int count = 0, i, failed = 0
        cdef ibv_device **devices = ibv_get_device_list(&count)
        self.born = forks
        self.name = name
        self.port = port
        self.children = weakref.WeakSet()
        if devices != NULL:
            try:
                for i in range(count):
                    if ibv_get_device_name(devices[i]).decode() == name:
                        self.context = ibv_open_device(devices[i])
                        failed = errno
                        break
            finally:
                ibv_free_device_list(devices)
        if self.context == NULL and failed:
            raise TransportUnavailable(
                f"RDMA device {name} cannot be opened: {os.strerror(failed)}; "
                "see the permissions of /dev/infiniband/uverbs*"
            )
        if self.context == NULL:
            raise TransportUnavailable(f"there is no RDMA device {name}; rdma link shows the devices")

    def __dealloc__(self):
        if self.context != NULL and self.born == forks:
            ibv_close_device(self.context)

    cdef int check(self) except -1:
        if self.context == NULL:
            raise TransportUnavailable(f"RDMA device {self.name} is closed")
        return 0

    def limits(self):
        """Return what the device can do, in numbers."""
        cdef ibv_device_attr device
        self.check()
        failed = ibv_query_device(self.context, &device)
        if failed:
            raise TransportUnavailable(f"RDMA device {self.name} does not answer: {os.strerror(failed)}; is it gone?")
        return {
            "max_mr_size": device.max_mr_size,
            "max_mr": device.max_mr,
            "max_qp": device.max_qp,
            "max_qp_wr": device.max_qp_wr,
            "max_reads_in": device.max_qp_rd_atom,
            "max_reads_out": device.max_qp_init_rd_atom,
            "atomics": device.atomic_cap != IBV_ATOMIC_NONE,
        }

    def port_state(self):
        """Return the port's state in numbers."""
        cdef ibv_port_attr port
        self.check()
        failed = ibv_query_port(self.context, <uint8_t> self.port, &port)
        if failed:
            raise TransportUnavailable(f"port {self.port} of RDMA device {self.name}: {os.strerror(failed)}")
        return {
            "active": port.state == IBV_PORT_ACTIVE,
            "mtu": port.active_mtu,
            "lid": port.lid,
            "ethernet": port.link_layer == 2,
            "gids": port.gid_tbl_len,
            "max_message": port.max_msg_sz,
        }

    def gid(self, int index):
        """Return the 16 bytes of the port's GID at *index*."""
        cdef ibv_gid gid
        self.check()
        if ibv_query_gid(self.context, <uint8_t> self.port, index, &gid):
            raise TransportUnavailable(
                f"RDMA device {self.name} has no GID {index} on port {self.port}; farpool doctor shows the table"
            )
        return (<char *> gid.raw)[:16]

    def close(self):
        """Close the device, and what was made from it first. Idempotent."""
        for child in list(self.children):
            child.close()
        if self.context != NULL and self.born == forks:
            ibv_close_device(self.context)
            self.context = NULL


@no_gc_clear
cdef class ProtectionDomain:
    """Memory regions and queue pairs that may work together; see the stub for the contract."""

    def __cinit__(self, Device device not None):
        device.check()
        self.born = forks
        self.device = device
        self.children = weakref.WeakSet()
        self.pd = ibv_alloc_pd(device.context)
        if self.pd == NULL:
            raise TransportUnavailable(f"RDMA device {device.name} gives no protection domain: {os.strerror(errno)}")
        device.children.add(self)

    def __dealloc__(self):
        if self.pd != NULL and self.born == forks:
            ibv_dealloc_pd(self.pd)

    def register(self, owner, uint64_t address, uint64_t nbytes, int access):
        """Register memory that *owner* keeps alive."""
        cdef MemoryRegion region = MemoryRegion.__new__(MemoryRegion)
        cdef ibv_mr *mr
        cdef int failed
        if self.pd == NULL:
            raise TransportUnavailable("the protection domain is closed")
        with nogil:
            mr = ibv_reg_mr(self.pd, <void *> address, nbytes, access)
            failed = errno
        if mr == NULL:
            raise_registration(self.device, nbytes, failed)
        region.born = forks
        region.mr = mr
        region.domain = self
        region.address = address
        region.nbytes = nbytes
        region.owner = owner
        self.children.add(region)
        return region

    def close(self):
        """Free the domain, and its regions and queue pairs first. Idempotent."""
        for child in list(self.children):
            child.close()
        if self.pd != NULL and self.born == forks:
            ibv_dealloc_pd(self.pd)
            self.pd = NULL


cdef object raise_registration(Device device, uint64_t nbytes, int failed):
    """Say which limit a registration has met: memlock, the size or the number of regions."""
    import resource
    limits = device.limits()
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    asked = f"RDMA device {device.name} cannot register {nbytes} bytes ({os.strerror(failed)})"
    if nbytes > limits["max_mr_size"]:
        raise TransportUnavailable(f"{asked}: its limit is {limits['max_mr_size']} bytes a region (max_mr_size)")
    if failed == ENOMEM and locked != resource.RLIM_INFINITY:
        raise TransportUnavailable(
            f"{asked}: the limit of locked memory is {locked} bytes in all; "
            "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit"
        )
    if failed == ENOMEM:
        raise TransportUnavailable(f"{asked}: it allows {limits['max_mr']} regions (max_mr), or memory is short")
    if failed in (EPERM, EINVAL, EFAULT, EOPNOTSUPP):
        raise TransportUnavailable(f"{asked}: the memory does not allow this access", errno=failed)
    raise TransportUnavailable(asked, errno=failed)


@no_gc_clear
cdef class MemoryRegion:
    """Memory that a device may reach; see the stub for the contract."""

    def __dealloc__(self):
        if self.mr != NULL and self.born == forks:
            ibv_dereg_mr(self.mr)

    @property
    def lkey(self):
        """The key for work requests of this process; 0 once closed."""
        return self.mr.lkey if self.mr != NULL else 0

    @property
    def rkey(self):
        """The key for peers; 0 once closed."""
        return self.mr.rkey if self.mr != NULL else 0

    def close(self):
        """Deregister. Idempotent."""
        cdef ibv_mr *mr = self.mr
        self.mr = NULL
        self.owner = None
        if mr != NULL and self.born == forks:
            with nogil:
                ibv_dereg_mr(mr)


@no_gc_clear
cdef class QueuePair:
    """One reliable connection with a completion queue and channel of its own; see the stub for the contract."""

    def __init__(self, ProtectionDomain domain not None, *, uint32_t depth, uint32_t max_inline=0):
        cdef ibv_qp_init_attr wanted
        cdef Device device = domain.device
        assert self.channel == NULL, "made twice"
        device.check()
        self.born = forks
        self.domain = domain
        self.psn = secrets.randbits(24)
        self.channel = ibv_create_comp_channel(device.context)
        if self.channel == NULL:
            raise_queue_pair(device, "completion channel")
        self.cq = ibv_create_cq(device.context, depth + 1, NULL, self.channel, 0)
        if self.cq == NULL:
            raise_queue_pair(device, "completion queue")
        memset(&wanted, 0, sizeof(wanted))
        wanted.send_cq = self.cq
        wanted.recv_cq = self.cq
        wanted.qp_type = IBV_QPT_RC
        wanted.cap.max_send_wr = depth
        wanted.cap.max_recv_wr = 1
        wanted.cap.max_send_sge = 1
        wanted.cap.max_recv_sge = 1
        wanted.cap.max_inline_data = max_inline
        self.qp = ibv_create_qp(domain.pd, &wanted)
        if self.qp == NULL:
            raise_queue_pair(device, "queue pair")
        self.depth = depth
        self.max_inline = min(wanted.cap.max_inline_data, max_inline)
        domain.children.add(self)
        self.prepare()

    cdef int prepare(self) except -1:
        cdef ibv_qp_attr change
        memset(&change, 0, sizeof(change))
        change.qp_state = IBV_QPS_INIT
        change.port_num = <uint8_t> self.domain.device.port
        change.qp_access_flags = 0
        return self.modify(&change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "INIT")

    cdef int modify(self, ibv_qp_attr *change, int mask, str state) except -1:
        failed = ibv_modify_qp(self.qp, change, mask)
        if failed:
            raise TransportUnavailable(
                f"the queue pair of {self.domain.device.name} cannot go to {state}: {os.strerror(failed)}; "
                "a GID that does not fit, or a route that is gone, is the usual cause: see farpool doctor"
            )
        return 0

    def __dealloc__(self):
        self.destroy()

    @property
    def number(self):
        """The number that the peer connects to."""
        return self.qp.qp_num if self.qp != NULL else 0

    @property
    def closed(self):
        """Whether the queue pair is destroyed."""
        return self.qp == NULL

    def fileno(self):
        """Return the completion channel's descriptor."""
        return self.channel.fd if self.channel != NULL else -1

    def connect(self, *, uint32_t number, uint32_t psn, bytes gid not None, uint32_t lid, uint8_t gid_index, int mtu,
                uint8_t reads_in, uint8_t reads_out, unsigned int remote_access):
        """Connect to the peer's queue pair."""
        cdef ibv_qp_attr change
        if self.qp == NULL:
            raise TransportUnavailable("the queue pair is closed")
        if len(gid) != 16:
            raise TransportUnavailable(f"the peer's GID has {len(gid)} bytes, not 16")
        memset(&change, 0, sizeof(change))
        change.qp_state = IBV_QPS_RTR
        change.path_mtu = mtu
        change.dest_qp_num = number
        change.rq_psn = psn
        change.max_dest_rd_atomic = reads_in
        change.min_rnr_timer = RNR_TIMER
        change.qp_access_flags = remote_access
        change.ah_attr.is_global = 1
        change.ah_attr.port_num = <uint8_t> self.domain.device.port
        change.ah_attr.dlid = <unsigned short> lid
        change.ah_attr.grh.sgid_index = gid_index
        change.ah_attr.grh.hop_limit = HOPS
        memcpy(change.ah_attr.grh.dgid.raw, <const char *> gid, 16)
        self.modify(&change, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_ACCESS_FLAGS, "RTR")
        change.qp_state = IBV_QPS_RTS
        change.timeout = ACK_TIMEOUT
        change.retry_cnt = RETRIES
        change.rnr_retry = RETRIES
        change.sq_psn = self.psn
        change.max_rd_atomic = reads_out
        self.modify(&change, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC, "RTS")
        self.reads = reads_out

    cpdef bint failed(self):
        """Tell whether the queue pair is in its error state, or destroyed."""
        cdef ibv_qp_attr now
        cdef ibv_qp_init_attr made
        if self.qp == NULL or ibv_query_qp(self.qp, &now, IBV_QP_STATE, &made) != 0:
            return True
        return now.qp_state == IBV_QPS_ERR

    cdef void destroy(self) noexcept:
        if self.born != forks:
            return      # a child shares the parent's descriptor: destroying here would destroy there
        if self.qp != NULL:
            ibv_destroy_qp(self.qp)
            self.qp = NULL
        if self.cq != NULL:
            ibv_destroy_cq(self.cq)
            self.cq = NULL
        if self.channel != NULL:
            ibv_destroy_comp_channel(self.channel)
            self.channel = NULL

    def close(self):
        """Destroy the queue pair: the device touches no memory for it afterwards. Idempotent."""
        self.destroy()


cdef object raise_queue_pair(Device device, str what):
    failed = errno
    limits = device.limits()
    raise TransportUnavailable(
        f"RDMA device {device.name} gives no {what}: {os.strerror(failed)}; "
        f"it allows {limits['max_qp']} queue pairs of {limits['max_qp_wr']} requests"
    )
