"""Real servers, real client processes and real signals, and the one fixture that sees that nothing is left of them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import settle, traces_of
from tests.faults.lateness import patience, watched_lateness

import farpool
from farpool.client.pool import Pool
from farpool.server.embedded import EmbeddedServer

WITHIN = 30.0
"""Seconds in which what must happen has happened; only a failure takes so long."""

CLIENT = Path(__file__).with_name("client.py")
NBYTES = 2 << 20

NOBODY = 65534
"""A user without any rights of its own."""

TRANSPORTS = ("cxl", "tcp")
APIS = ("sync", "aio")

Serve = Callable[..., EmbeddedServer]


@contextmanager
def ends_in_time(timeout: float, what: str) -> Generator[None]:
    """See that the block, a call with that timeout, ends in time."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert took < patience(timeout, begun), f"{what} took {took:.2f} s, with a deadline of {timeout} s"


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for *true*."""
    left = settle(lambda: set() if true() else {what}, set(), WITHIN)
    assert not left, f"this has not come true in time: {what}"


def running(pid: int) -> bool:
    """Tell whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# Clients ---------------------------------------------------------------------------------------------------------


class ClientProcess:
    """``client.py`` as a child: what it says is waited for, never longer than *within* seconds."""

    def __init__(
        self,
        url: str,
        transport: str,
        api: str,
        timeout: float,
        nbytes: int = NBYTES,
        *,
        held: bool = False,
        within: float = WITHIN,
    ) -> None:
        self._unread = b""
        self._switches: list[str] = []
        self._within = within
        arguments = [url, transport, api, str(timeout), str(nbytes), *(["held"] if held else [])]
        self.process = subprocess.Popen(
            [sys.executable, str(CLIENT), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.slab: int = self.expect("allocated")["slab"]
            self.expect("ready")
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self, within: float = 0.0) -> dict[str, Any] | None:
        """Return what the client says next, None if it says nothing."""
        assert self.process.stdout is not None
        end = time.monotonic() + within
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return None
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            assert piece, "the client has ended"
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        return said

    def expect(self, event: str) -> dict[str, Any]:
        """Return what the client says next; it must be *event*."""
        said = self.said(self._within)
        assert said is not None, f"the client does not say {event!r}"
        assert said["event"] == event, said
        return said

    def tell(self, command: str) -> None:
        """Give the client its next command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a stop has taken effect when this returns."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def is_waiting(self) -> bool:
        """Tell whether the process sleeps, and has not run since this was last asked."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        before, self._switches = self._switches, [line for line in lines if "ctxt" in line]
        return self._switches == before and any(line.startswith("State:\tS") for line in lines)

    def close(self) -> None:
        """Let the client end in order."""
        self.tell("close")
        self.expect("closed")
        assert self.process.wait(self._within) == 0

    def end(self) -> None:
        """Kill what is left of it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


StartClient = Callable[..., ClientProcess]


@pytest.fixture
def start_client(nothing_left: None) -> Iterator[StartClient]:
    """Start client processes, and end them."""
    clients: list[ClientProcess] = []

    def start(server: EmbeddedServer, transport: str, api: str = "sync", timeout: float = 10.0) -> ClientProcess:
        clients.append(ClientProcess(server.url, transport, api, timeout))
        return clients[-1]

    yield start
    for client in clients:
        client.end()


# Servers ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_left(no_child_left: None, no_leak: None) -> None:
    """Hold every test here to its processes, descriptors and threads; ``serve`` does so for the servers' side."""


@pytest.fixture(autouse=True)
def lateness(nothing_left: None) -> Iterator[None]:
    """Measure how late the machine is, while calls are held to their deadlines."""
    with watched_lateness():
        yield


@pytest.fixture
def serve(nothing_left: None) -> Iterator[Serve]:
    """Start servers. Each must hold in the end what it held at first, and leave nothing when it has ended."""
    with ExitStack() as stack:

        def start(**settings: Any) -> EmbeddedServer:
            return stack.enter_context(watched(**settings))

        yield start


@contextmanager
def watched(*, transports: Sequence[str] = TRANSPORTS, **settings: Any) -> Generator[EmbeddedServer]:
    """Run a server; what it holds is compared once its clients have gone, and what it leaves once it has ended."""
    defaults: dict[str, Any] = {"capacity": "64MiB", "resume_grace": 5.0}
    with farpool.serve_embedded(transports=transports, **(defaults | settings)) as server:
        for transport in transports:
            with farpool.connect(server.url, transport=transport) as pool:
                pool.allocate(1).write(b"x")
        until(lambda: not slabs_in(server), "the first clients' slabs are gone")
        before = traces_of(server)
        made = [Path(server.url.removeprefix("unix://")), *([] if "arena" in settings else [Path(server.arena)])]
        yield server
        if is_running(server):
            with farpool.connect(server.url, transport=transports[0]) as pool:
                until(lambda: is_empty(pool), "the pool is empty")
            assert not settle(lambda: traces_of(server), before, WITHIN), "the server holds more than at first"
    assert not [path for path in made if path.exists()], "the server has left something"


def is_empty(pool: Pool) -> bool:
    """Tell whether no byte of the pool is in use."""
    stat = pool.stat()
    return (stat.allocated, stat.reclaiming, stat.slabs) == (0, 0, 0)


def slabs_in(server: EmbeddedServer) -> set[str]:
    """Return the slab files in the server's arena."""
    return {path.name for path in Path(server.arena).glob("slab-*")}


def is_running(server: EmbeddedServer) -> bool:
    """Tell whether the server has a process, and let that go on."""
    try:
        server.resume()
    except farpool.ServerLost:
        return False
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name that other users may pass through."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def as_root() -> None:
    """Skip where the test's set-up needs root."""
    if os.geteuid() != 0:
        pytest.skip("only root can run children under other uids, and mount a small tmpfs")
