"""A client of a pool that shares no code with the rdma transport: control messages on a socket, and pyverbs.

``python bare_pyverbs.py SOCKET SLAB DEVICE`` works on the slab as ``test_interoperability.py`` expects, and prints what
it has read as JSON.
"""

# pyverbs has no types.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
from typing import Any, TypeVar

from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import (
    PROTOCOL_VERSION,
    REPLY,
    Attached,
    Goodbye,
    Hello,
    Negotiate,
    Negotiated,
    Open,
    Reply,
    Request,
    Welcome,
    decode_reply_fields,
    encode_request,
)

try:
    import pyverbs.libibverbs_enums as verbs
except ModuleNotFoundError:
    import pyverbs.enums as verbs

R = TypeVar("R", bound=Reply)
BYTES = 4096


class Control:
    """The control plane, one request at a time."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.ids = itertools.count(1)
        self.decoder = FrameDecoder()
        self.replies: list[list[Any]] = []

    def call(self, request: Request, kind: type[R]) -> R:
        number = next(self.ids)
        self.socket.sendall(encode_request(number, request))
        while True:
            while not self.replies:
                self.replies = [decode_payload(payload) for payload in self.decoder.feed(self.socket.recv(65536))]
            reply = self.replies.pop(0)
            if reply[1] == number:
                assert reply[0] == REPLY, reply
                return decode_reply_fields(kind, reply[2])


class Verbs:
    """One connected queue pair and the slab behind it."""

    def __init__(self, control: Control, slab: str, device: str) -> None:
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.mr = MR(self.pd, BYTES, verbs.IBV_ACCESS_LOCAL_WRITE)
        cap = QPCap(max_send_wr=16, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=verbs.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        found = control.call(Open(name=slab, transport="rdma"), Attached)
        self.address, self.rkey = found.params["address"], found.params["rkey"]
        self.connect(control)

    def connect(self, control: Control) -> None:
        port, limits = self.context.query_port(1), self.context.query_device()
        gids = [self.context.query_gid(1, index).gid for index in range(port.gid_tbl_len)]
        index = next(number for number, gid in enumerate(gids) if gid.startswith("0000:0000:0000:0000:0000:ffff"))
        mine = {
            "number": self.qp.qp_num,
            "psn": 7,
            "gid": bytes.fromhex(gids[index].replace(":", "")),
            "lid": port.lid,
            "mtu": port.active_mtu,
            "reads_in": 1,
        }
        peer = control.call(Negotiate(transport="rdma", params=mine), Negotiated).params
        route = GlobalRoute(dgid=GID(peer["gid"].hex(":", 2)), sgid_index=index, hop_limit=64)
        change = QPAttr(port_num=1)
        change.ah_attr = AHAttr(port_num=1, is_global=1, gr=route, dlid=peer["lid"])
        change.path_mtu = min(port.active_mtu, peer["mtu"])
        change.dest_qp_num, change.rq_psn, change.sq_psn = peer["number"], peer["psn"], mine["psn"]
        change.max_dest_rd_atomic = 1
        change.max_rd_atomic = min(limits.max_qp_init_rd_atom, peer["reads_in"])
        change.min_rnr_timer, change.timeout, change.retry_cnt, change.rnr_retry = 12, 14, 7, 7
        self.qp.to_rts(change)

    def run(self, request: SendWR) -> None:
        self.qp.post_send(request)
        while True:
            count, completions = self.cq.poll(1)
            if count:
                assert completions[0].status == verbs.IBV_WC_SUCCESS, completions[0]
                return

    def move(self, opcode: int, offset: int, nbytes: int) -> None:
        request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(self.mr.buf, nbytes, self.mr.lkey)])
        request.set_wr_rdma(self.rkey, self.address + offset)
        self.run(request)

    def read(self, offset: int, nbytes: int) -> bytes:
        self.move(verbs.IBV_WR_RDMA_READ, offset, nbytes)
        return bytes(self.mr.read(nbytes, 0))

    def write(self, offset: int, data: bytes) -> None:
        self.mr.write(data, len(data), 0)
        self.move(verbs.IBV_WR_RDMA_WRITE, offset, len(data))

    def atomic(self, opcode: int, offset: int, first: int, second: int = 0) -> int:
        request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(self.mr.buf, 8, self.mr.lkey)])
        request.set_wr_atomic(self.rkey, self.address + offset, first, second)
        self.run(request)
        return int.from_bytes(self.mr.read(8, 0), sys.byteorder)


def main(path: str, slab: str, device: str) -> None:
    control = Control(path)
    control.call(Hello(protocol=PROTOCOL_VERSION, client="bare pyverbs", pid=os.getpid()), Welcome)
    memory = Verbs(control, slab, device)
    read = memory.read(64, 16)
    memory.write(128, b"written by pyverbs")
    memory.write(2048, bytes(range(256)) * 8)
    added = [memory.atomic(verbs.IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 5) for _ in range(3)]
    swapped = [memory.atomic(verbs.IBV_WR_ATOMIC_CMP_AND_SWP, 8, expected, 99) for expected in (1, 40)]
    print(json.dumps({"read": read.decode(), "added": added, "swapped": swapped}))
    loaded = [
        name for name in sys.modules if name.startswith(("farpool.transports", "farpool.native", "farpool.client"))
    ]
    assert not loaded, loaded
    control.call(Goodbye(), Reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
