"""A device, its protection domains, memory and queue pairs, over pyverbs objects; ``binding.py`` has the contract.

Parents close their children first, children keep their parent alive, ``close`` may be called twice.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma.pyverbs import library
from farpool.transports.rdma.pyverbs.handles import Handle, PyverbsError, cause_of, registration_failure

__all__ = ["Device", "Domain", "Memory", "Pair"]

enums = library.enums

ACK_TIMEOUT: Final = 14
"""4.096 us * 2**14 = 67 ms until a packet is sent again (InfiniBand specification, 9.7.6.1.3)."""
RETRIES: Final = 6
"""7, the most that the field holds, is for ever on soft-RoCE."""
RNR_TIMER: Final = 12
HOPS: Final = 64
EVENT_FILE: Final = "anon_inode:[infinibandevent]"

_opening_channel = threading.Lock()


class Device:
    """An open device and one of its ports."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.children: WeakSet[Domain] = WeakSet()
        try:
            self._handle = Handle(library.device.Context(name=name))
        except PyverbsError as error:
            raise TransportUnavailable(
                f"RDMA device {name} cannot be opened: {cause_of(error)}; rdma link shows the devices, "
                "and /dev/infiniband/uverbs* must allow it"
            ) from error

    @property
    def context(self) -> Any:
        """The open pyverbs context."""
        if self._handle.inner is None:
            raise TransportUnavailable(f"RDMA device {self.name} is closed")
        return self._handle.inner

    def limits(self) -> Mapping[str, int]:
        """Return what the device can do, in numbers."""
        try:
            found = self.context.query_device()
        except PyverbsError as error:
            raise TransportUnavailable(
                f"RDMA device {self.name} does not answer: {cause_of(error)}; is it gone?"
            ) from error
        return {
            "max_mr_size": found.max_mr_size,
            "max_mr": found.max_mr,
            "max_qp": found.max_qp,
            "max_qp_wr": found.max_qp_wr,
            "max_reads_in": found.max_qp_rd_atom,
            "max_reads_out": found.max_qp_init_rd_atom,
            "atomics": found.atomic_caps != enums.IBV_ATOMIC_NONE,
        }

    def port_state(self) -> Mapping[str, int]:
        """Return the port's state in numbers."""
        try:
            found = self.context.query_port(self.port)
        except PyverbsError as error:
            raise TransportUnavailable(f"port {self.port} of RDMA device {self.name}: {cause_of(error)}") from error
        return {
            "active": found.state == enums.IBV_PORT_ACTIVE,
            "mtu": found.active_mtu,
            "lid": found.lid,
            "ethernet": found.link_layer == enums.IBV_LINK_LAYER_ETHERNET,
            "gids": found.gid_tbl_len,
            "max_message": found.max_msg_sz,
        }

    def gid(self, index: int) -> bytes:
        """Return the 16 bytes of the port's GID at *index*."""
        try:
            return bytes.fromhex(self.context.query_gid(self.port, index).gid.replace(":", ""))
        except PyverbsError as error:
            raise TransportUnavailable(
                f"RDMA device {self.name} has no GID {index} on port {self.port}; farpool doctor shows the table"
            ) from error

    def close(self) -> None:
        """Close the device, and what was made from it first. Idempotent."""
        for child in list(self.children):
            child.close()
        self._handle.end()


class Domain:
    """Memory and queue pairs that may work together."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.children: WeakSet[Memory | Pair] = WeakSet()
        try:
            self._handle = Handle(library.pd.PD(device.context))
        except PyverbsError as error:
            raise TransportUnavailable(
                f"RDMA device {device.name} gives no protection domain: {cause_of(error)}"
            ) from error
        device.children.add(self)

    @property
    def pd(self) -> Any:
        """The pyverbs protection domain."""
        if self._handle.inner is None:
            raise TransportUnavailable("the protection domain is closed")
        return self._handle.inner

    def register(self, owner: object, address: int, nbytes: int, access: int) -> Memory:
        """Register memory that *owner* keeps alive; raises ``TransportUnavailable`` with the limit that was met."""
        try:
            handle = Handle(library.mr.MR(self.pd, nbytes, access, address))
        except PyverbsError as error:
            raise registration_failure(self.device.name, self.device.limits(), nbytes, error) from error
        return Memory(self, handle, owner, address, nbytes)

    def close(self) -> None:
        """Free the domain, and its memory and queue pairs first. Idempotent."""
        for child in list(self.children):
            child.close()
        self._handle.end()


class Memory:
    """Memory that a device may reach. The keys are 0 once it is closed."""

    def __init__(self, domain: Domain, handle: Handle, owner: object, address: int, nbytes: int) -> None:
        self._domain = domain
        self._handle = handle
        self._owner = owner
        self.address = address
        self.nbytes = nbytes
        self.lkey: int = handle.inner.lkey
        self.rkey: int = handle.inner.rkey
        domain.children.add(self)

    def close(self) -> None:
        """Deregister. Idempotent."""
        self.lkey = self.rkey = 0
        self._handle.end()
        self._owner = None


class Pair:
    """A reliable connection's queue pair with a completion queue and channel of its own.

    ``lock`` is held around each use of the three, so that none is closed under a thread that uses it.
    """

    def __init__(self, domain: Domain, *, depth: int, max_inline: int) -> None:
        self._domain = domain
        self.depth = depth
        self.psn = secrets.randbits(24)
        self.incarnation = 0
        self.lock = threading.RLock()
        device = domain.device
        try:
            channel, self._events = _open_channel(device.context)
            self._channel = Handle(channel)
            self._cq = Handle(library.cq.CQ(device.context, depth + 1, None, channel, 0))
            wanted = library.qp.QPInitAttr(
                qp_type=enums.IBV_QPT_RC,
                scq=self._cq.inner,
                rcq=self._cq.inner,
                cap=library.qp.QPCap(depth, 1, 1, 1, max_inline),
                sq_sig_all=0,  # else every request of a batch completes, and the first one ends the wait for all
            )
            self._qp = Handle(library.qp.QP(domain.pd, wanted))
        except PyverbsError as error:
            limits = device.limits()
            raise TransportUnavailable(
                f"RDMA device {device.name} gives no queue pair: {cause_of(error)}; "
                f"it allows {limits['max_qp']} queue pairs of {limits['max_qp_wr']} requests"
            ) from error
        self.number: int = self._qp.inner.qp_num
        self.max_inline: int = min(wanted.max_inline_data, max_inline)
        domain.children.add(self)

    @property
    def qp(self) -> Any:
        """The pyverbs queue pair; None once it is closed."""
        return self._qp.inner

    @property
    def cq(self) -> Any:
        """The pyverbs completion queue; None once it is closed."""
        return self._cq.inner

    @property
    def channel(self) -> Any:
        """The pyverbs completion channel; None once it is closed."""
        return self._channel.inner

    def fileno(self) -> int:
        """Return the completion channel's descriptor."""
        return self._events

    def connect(
        self,
        *,
        number: int,
        psn: int,
        gid: bytes,
        lid: int,
        gid_index: int,
        mtu: int,
        reads_in: int,
        reads_out: int,
        remote_access: int,
    ) -> None:
        """Connect to the peer's queue pair; both sides do so, in any order."""
        port = self._domain.device.port
        words = gid.hex(":", 2)
        route = library.addr.GlobalRoute(dgid=library.addr.GID(words), sgid_index=gid_index, hop_limit=HOPS)
        change = library.qp.QPAttr(port_num=port)
        change.ah_attr = library.addr.AHAttr(port_num=port, is_global=1, gr=route, dlid=lid)
        change.qp_access_flags = remote_access
        change.path_mtu = mtu
        change.dest_qp_num = number
        change.rq_psn = psn
        change.sq_psn = self.psn
        change.max_dest_rd_atomic = reads_in
        change.max_rd_atomic = reads_out
        change.min_rnr_timer = RNR_TIMER
        change.timeout = ACK_TIMEOUT
        change.retry_cnt = change.rnr_retry = RETRIES
        with self.lock:
            if self.qp is None:
                raise TransportUnavailable("the queue pair is closed")
            try:
                self.qp.to_rts(change)  # by way of INIT and RTR
            except PyverbsError as error:
                raise TransportUnavailable(
                    f"the queue pair of {self._domain.device.name} cannot be connected: {cause_of(error)}; "
                    "a GID that does not fit, or a route that is gone, is the usual cause: see farpool doctor"
                ) from error

    def failed(self) -> bool:
        """Tell whether the queue pair is in its error state, or destroyed."""
        with self.lock:
            if self.qp is None:
                return True
            try:
                now, _ = self.qp.query(enums.IBV_QP_STATE)
            except PyverbsError:
                return True
        return bool(now.qp_state == enums.IBV_QPS_ERR)

    def close(self) -> None:
        """Destroy the queue pair: the device touches no memory for it afterwards. Idempotent."""
        if self._qp.inherited:
            return  # its lock may have been held by a thread that this process does not have
        with self.lock:
            self._qp.end()
            self._cq.end()
            self._channel.end()


def _open_channel(context: Any) -> tuple[Any, int]:
    """Make a completion channel and find its descriptor, which pyverbs does not tell.

    Without it nobody could wait with a deadline: ``get_cq_event`` blocks, and holds the GIL. The descriptor is made
    non-blocking, so that no event that somebody else took can block it either.
    """
    with _opening_channel:
        for _ in range(10):
            before = _event_files()
            channel = library.cq.CompChannel(context)
            fresh = _event_files() - before
            if len(fresh) == 1:  # else the native binding has opened or closed one at the same time
                number = fresh.pop()
                fcntl.fcntl(number, fcntl.F_SETFL, fcntl.fcntl(number, fcntl.F_GETFL) | os.O_NONBLOCK)
                return channel, number
            channel.close()
    raise TransportUnavailable("the descriptor of a completion channel could not be found under /proc/self/fd")


def _event_files() -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if str(entry.readlink()) == EVENT_FILE:
                found.add(int(entry.name))
        except FileNotFoundError:
            continue  # closed meanwhile
    return found
