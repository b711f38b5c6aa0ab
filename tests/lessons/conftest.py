"""A server for the lessons' tests. Each file names its row of the lessons that the project was given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.conftest import settle

import farpool
from farpool.server.embedded import EmbeddedServer

TRANSPORTS = ("cxl", "tcp")
WITHIN = 30.0
"""Seconds in which what must come about has come about; only a failure takes so long."""

WRITER = Path(__file__).with_name("writer.py")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server with both transports. Leave it running."""
    with farpool.serve_embedded(capacity="256MiB", transports=TRANSPORTS) as served:
        yield served


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server that the test may kill."""
    with farpool.serve_embedded(capacity="64MiB", transports=TRANSPORTS) as served:
        yield served


@pytest.fixture
def pool(server: EmbeddedServer, transport: str) -> Iterator[farpool.Pool]:
    with farpool.connect(server.url, transport=transport) as connected:
        yield connected


@pytest.fixture
def other(server: EmbeddedServer, transport: str) -> Iterator[farpool.Pool]:
    """Another session."""
    with farpool.connect(server.url, transport=transport) as connected:
        yield connected


def until(true: Callable[[], bool], what: str) -> None:
    """Wait for *true*."""
    assert not settle(lambda: set() if true() else {what}, set(), WITHIN), f"this has not come true in time: {what}"


class Writer:
    """``writer.py`` as a child: it has written half of a new version of a slab, and waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.hear("half written")

    def hear(self, expected: str) -> None:
        """Wait for what the writer says next."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{expected}\n"

    def go_on(self, expected: str) -> None:
        """Let it write the other half and commit; wait for its outcome."""
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()
        self.hear(expected)

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def suspend(self) -> None:
        """Stop it, as a paused machine would."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)


StartWriter = Callable[..., Writer]


@pytest.fixture
def start_writer(transport: str) -> Iterator[StartWriter]:
    """Call with a server, a name and a lease: the slab of that name, made where there is none, gets half a version."""
    with ExitStack() as undo:

        def start(server: EmbeddedServer, name: str, lease: str = "session") -> Writer:
            command = [sys.executable, str(WRITER), server.url, transport, name, lease]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            undo.enter_context(process)
            undo.callback(process.kill)
            return Writer(process)

        yield start
