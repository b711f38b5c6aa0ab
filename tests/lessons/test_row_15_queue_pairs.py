"""Lessons row 15: over 20 000 queue pairs on one NIC under failure, since cleanup ran only on new connections.

Here queue pairs are capped, a session and in all; those of a dead client go with its session, and those that their
device has given up go on a timer. Nobody needs to connect for it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import pytest
from tests.contexts import server_context

import farpool
from farpool.transports.contract import ServedSession
from farpool.transports.rdma import server as rdma_server
from farpool.transports.rdma.binding import Binding, VerbsPair
from farpool.transports.rdma.ports import Port
from farpool.transports.rdma.server import PAIRS_A_SESSION, RdmaServer
from farpool.transports.rdma.sysfs import Gid

END = {"number": 17, "psn": 1, "gid": bytes(16), "lid": 0, "mtu": 5, "reads_in": 1}
SESSIONS = [ServedSession(id=number, tenant="default", secret=bytes(32)) for number in range(4)]


class CountedPair:
    """A queue pair without a device."""

    alive: ClassVar[set[CountedPair]] = set()
    ended: ClassVar[asyncio.Queue[CountedPair]]
    number = psn = 5

    def __init__(self) -> None:
        self.broken = False
        self.incarnation = 0
        self.alive.add(self)

    def connect(self, **named: Any) -> None:
        pass

    def failed(self) -> bool:
        return self.broken

    def close(self) -> None:
        self.alive.discard(self)
        self.ended.put_nowait(self)


class CountingBinding:
    """A binding that makes :class:`CountedPair`, and says that it could make 1000."""

    READ, WRITE, ATOMIC, LOCAL = 4, 2, 8, 1
    name, port = "counted0", 1

    def open_port(self, binding: object, settings: Mapping[str, object]) -> Port:
        return Port(
            device=cast("Any", self),
            gid=Gid(0, "::1", "RoCE v2", "lo"),
            gid_bytes=bytes(16),
            mtu=5,
            lid=0,
            max_message=1 << 30,
            reads_in=1,
            reads_out=1,
            atomics=True,
        )

    def limits(self) -> dict[str, int]:
        return {"max_qp": 1000}

    def domain(self, device: object) -> CountingBinding:
        return self

    def pair(self, domain: object, *, depth: int, max_inline: int) -> VerbsPair:
        return CountedPair()

    def close(self) -> None:
        pass


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> RdmaServer:
    """A server half on a device that only counts; 12 queue pairs in all."""
    binding = CountingBinding()

    def load(name: str) -> Binding:
        return cast("Binding", binding)

    CountedPair.alive.clear()
    CountedPair.ended = asyncio.Queue()
    monkeypatch.setattr("farpool.transports.rdma.binding.load", load)
    monkeypatch.setattr(rdma_server, "open_port", binding.open_port)
    monkeypatch.setattr(rdma_server, "RECLAIM_SECONDS", 0.01)
    half = RdmaServer()
    await half.start(server_context({"max_queue_pairs": 12}))
    return half


async def test_a_session_that_connects_again_and_again_keeps_a_few(served: RdmaServer) -> None:
    for _ in range(1000):
        served.negotiate(SESSIONS[0], END)
        assert len(CountedPair.alive) <= PAIRS_A_SESSION
    assert served.counters()["queue_pairs"] == len(CountedPair.alive) == PAIRS_A_SESSION
    served.end_session(SESSIONS[0].id)
    assert not CountedPair.alive
    await served.stop()


async def test_all_sessions_together_have_a_limit_that_the_message_names(served: RdmaServer) -> None:
    for session in SESSIONS[:3]:
        for _ in range(4):
            served.negotiate(session, END)
    with pytest.raises(farpool.TransportUnavailable, match="all 12 queue pairs"):
        served.negotiate(SESSIONS[3], END)
    served.end_session(SESSIONS[0].id)
    served.negotiate(SESSIONS[3], END)
    await served.stop()
    assert not CountedPair.alive


async def test_broken_ones_go_on_a_timer(served: RdmaServer) -> None:
    for session in SESSIONS[:3]:
        served.negotiate(session, END)
    broken = set(list(CountedPair.alive)[:2])
    for pair in broken:
        pair.broken = True
    # And nobody connects.
    assert {await asyncio.wait_for(CountedPair.ended.get(), 30) for _ in broken} == broken
    assert len(CountedPair.alive) == 1
    assert served.counters()["reclaimed"] == 2
    await served.stop()


CLIENT = """
import sys
import farpool

pool = farpool.connect(sys.argv[1], transport="rdma")
pool.allocate(4096).write(b"connected")
print("connected", flush=True)
sys.stdin.readline()
"""


@pytest.mark.lab
def test_a_killed_client_leaves_none(rdma_device: str) -> None:
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["tcp", "rdma"]) as server,
        farpool.connect(server.url, transport="tcp") as pool,
    ):

        def pairs() -> int:
            return int(pool.stat().transports["rdma"]["queue_pairs"])

        command = [sys.executable, "-c", CLIENT, server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "connected\n"
                assert pairs() > 0
            finally:
                child.kill()
        deadline = time.monotonic() + 60
        while pairs() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert pairs() == 0
