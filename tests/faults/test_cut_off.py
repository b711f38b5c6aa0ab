"""Clients over cxl that hear nothing of their server: they reach what they share until their session has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from tests.faults.conftest import until
from tests.faults.muted import MutedRoad

import farpool
from farpool.client.pool import Pool
from farpool.client.slab import Slab
from farpool.native import cache_lines
from farpool.protocol.addresses import parse_address
from farpool.protocol.errors import TransportUnavailable
from farpool.server.embedded import EmbeddedServer

SESSION_TIMEOUT: Final = 1.5
RESUME_GRACE: Final = 3.0
ASKING: Final = 0.2
"""Seconds in which a client that finds its session ended asks a server that it cannot reach."""
NBYTES: Final = 4096
OURS: Final = b"\x11" * NBYTES

NOT_SERVED: Final = (farpool.StaleSlab, farpool.DeadlineExceeded, farpool.ServerLost)
"""The region knows that it may not; whether the handle goes on in another session only the server could tell."""

CALLS: Final[dict[str, Callable[[Slab], object]]] = {
    "read": lambda slab: slab.read(64),
    "read_into": lambda slab: slab.read_into(bytearray(64)),
    "readv": lambda slab: slab.readv([(0, bytearray(8))]),
    "write": lambda slab: slab.write(b"late"),
    "writev": lambda slab: slab.writev([(0, b"late"), (64, b"late")]),
    "load": lambda slab: slab.load(8),
    "store": lambda slab: slab.store(8, 1),
    "fetch_add": lambda slab: slab.fetch_add(8, 1),
    "compare_swap": lambda slab: slab.compare_swap(8, slab.nbytes, 1),
}


@pytest.fixture(
    params=[("directory", "hardware"), ("device", "hardware"), ("device", "software")],
    ids="-".join,
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server for cxl alone, on each kind of memory."""
    arena, coherence = request.param
    settings: dict[str, Any] = {"session_timeout": SESSION_TIMEOUT, "resume_grace": RESUME_GRACE}
    if coherence == "software":
        try:
            cache_lines.instructions()
        except TransportUnavailable as error:
            pytest.skip(error.message)
    if arena == "device":
        device = tmp_path / "device"
        with device.open("wb") as file:
            file.truncate(66 << 20)
        settings |= {"arena": str(device), "state_dir": str(tmp_path / "state")}
    with farpool.serve_embedded(capacity="64MiB", transports=["cxl"], coherence=coherence, **settings) as served:
        yield served


class Pair:
    """Two sessions that share a slab, one of which can be cut off from the server."""

    def __init__(self, server: EmbeddedServer, undo: ExitStack) -> None:
        address = parse_address(server.tcp_url)
        self.road = undo.enter_context(MutedRoad(address.host, address.port))
        self.near = undo.enter_context(farpool.connect(server.url, transport="cxl"))
        self.mine = self.near.allocate(NBYTES, name="shared", lease="persistent")
        self.mine.write(OURS)
        self._far = farpool.connect(f"farpool://127.0.0.1:{self.road.port}", transport="cxl", timeout=ASKING)
        undo.callback(self._far.close)
        self.theirs = self._far.open("shared", timeout=30.0)

    def must_be_out(self) -> None:
        """See that no call of the one that was cut off moves a byte."""
        for call in CALLS.values():
            with pytest.raises(NOT_SERVED):
                call(self.theirs)
        assert self.mine.read(NBYTES) == OURS

    def finish(self) -> None:
        """Leave nothing in the pool; on a device nobody but the operator knows that the other has let go."""
        self.mine.free()
        self._far.close()
        for held in self.near.stat().quarantined:
            self.near.release_host(held.host)


@pytest.fixture
def pair(server: EmbeddedServer) -> Iterator[Pair]:
    with ExitStack() as undo:
        yield Pair(server, undo)


def alone(pool: Pool) -> Callable[[], bool]:
    return lambda: pool.stat().sessions == 1


def test_it_stores_no_more_from_its_sessions_end_on(pair: Pair) -> None:
    pair.theirs.store(8, 1)
    assert pair.mine.load(8) == 1
    pair.mine.write(OURS)
    pair.road.mute()
    assert pair.theirs.read(NBYTES) == OURS
    until(alone(pair.near), "the session of the one that was cut off has ended")
    pair.must_be_out()
    pair.finish()


def test_a_restart_of_the_server_ends_only_who_does_not_come_back(server: EmbeddedServer, pair: Pair) -> None:
    pair.road.mute()
    server.kill()
    assert pair.mine.read(NBYTES) == pair.theirs.read(NBYTES) == OURS
    server.start()
    assert pair.near.stat().sessions == 2, "both may come back"
    pair.mine.store(8, 5)
    assert pair.theirs.load(8) == 5
    pair.mine.write(OURS)
    until(alone(pair.near), "nobody has resumed the other session")
    pair.must_be_out()
    pair.mine.write(OURS)
    assert pair.mine.read(NBYTES) == OURS
    pair.finish()
