"""Words under several processes and failures: what they saw can have happened one after the other.

Clients are killed and stopped in the middle, and the server is killed and started anew. What was cut off may have been
done, once, or not.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from tests.conftest import settle
from tests.linearizability.histories import Operation, is_linearizable, read_histories

import farpool
from farpool.server.embedded import EmbeddedServer

WITHIN = max(60.0, float(os.environ.get("FARPOOL_START_TIMEOUT", "0")))
"""Seconds that only a failure takes; an emulated machine, which that variable tells, needs more."""
WORKER = Path(__file__).with_name("worker.py")
WORDS = 3
OPERATIONS = 300
NAME = "words"


@pytest.fixture(params=["cxl", "tcp", "rdma"])
def transport(request: pytest.FixtureRequest) -> str:
    if request.param == "rdma":
        request.getfixturevalue("rdma_device")
    return str(request.param)


@pytest.fixture
def server(transport: str) -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="16MiB", transports=[transport]) as served:
        yield served


class Crew:
    """Workers on the same words, each with a file of what it called and what came back."""

    def __init__(self, server: EmbeddedServer, transport: str, folder: Path, undo: ExitStack) -> None:
        self.paths: list[Path] = []
        self._command = [sys.executable, str(WORKER), server.url, transport, NAME]
        self._folder = folder
        self._undo = undo

    def start(self, many: int) -> list[subprocess.Popen[str]]:
        """Start workers, and let them begin together."""
        started: list[subprocess.Popen[str]] = []
        for _ in range(many):
            self.paths.append(self._folder / f"history-{len(self.paths)}")
            arguments = [str(self.paths[-1]), str(len(self.paths)), str(OPERATIONS), str(WORDS)]
            process = subprocess.Popen(
                [*self._command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self._undo.enter_context(process)
            self._undo.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return started

    def wait_for(self, number: int, lines: int) -> None:
        """Wait until a worker has written so many lines."""
        path = self.paths[number]
        assert not settle(lambda: {path} if path.read_bytes().count(b"\n") < lines else set(), set(), WITHIN)


@pytest.fixture
def crew(server: EmbeddedServer, transport: str, tmp_path: Path) -> Iterator[Crew]:
    with ExitStack() as undo:
        yield Crew(server, transport, tmp_path, undo)


def check(crew: Crew, slab: farpool.Slab) -> None:
    """Fail unless each word's history, with the value that it has now behind it, is linearizable."""
    histories = read_histories(crew.paths)
    assert sorted(histories) == [8 * word for word in range(WORDS)]
    for offset, history in histories.items():
        assert sum(operation.known for operation in history) > OPERATIONS / 4
        end = max(operation.returned for operation in history if operation.known) + 1
        last = Operation("load", (), end, end + 1, slab.load(offset))
        kept = crew.paths[0].parent
        assert is_linearizable([*history, last]), f"word at {offset}: the histories are in {kept}"


def test_nothing_fails(crew: Crew, server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(server.url, transport=transport, timeout=WITHIN) as pool:
        slab = pool.allocate(8 * WORDS, name=NAME, lease="persistent")
        for process in crew.start(4):
            assert process.wait(WITHIN) == 0
        check(crew, slab)


def test_clients_are_killed_and_stopped(crew: Crew, server: EmbeddedServer, transport: str) -> None:
    chance = random.Random(transport)
    with farpool.connect(server.url, transport=transport, timeout=WITHIN) as pool:
        slab = pool.allocate(8 * WORDS, name=NAME, lease="persistent")
        killed, stopped, *others = crew.start(4)
        crew.wait_for(0, chance.randrange(1, 2 * OPERATIONS))
        killed.send_signal(SIGKILL)
        crew.wait_for(1, chance.randrange(1, 2 * OPERATIONS))
        stopped.send_signal(SIGSTOP)
        others += crew.start(1)
        crew.wait_for(4, OPERATIONS)
        stopped.send_signal(SIGCONT)
        for process in (stopped, *others):
            assert process.wait(WITHIN) == 0
        check(crew, slab)


@pytest.mark.parametrize("end", [EmbeddedServer.kill, EmbeddedServer.stop], ids=["killed", "stopped"])
def test_the_server_starts_anew(
    crew: Crew, server: EmbeddedServer, transport: str, end: Callable[[EmbeddedServer], None]
) -> None:
    chance = random.Random(transport)
    with farpool.connect(server.url, transport=transport, timeout=WITHIN) as pool:
        slab = pool.allocate(8 * WORDS, name=NAME, lease="persistent")
        workers = crew.start(4)
        crew.wait_for(0, chance.randrange(1, OPERATIONS))
        end(server)
        server.start()
        for process in workers:
            assert process.wait(WITHIN) == 0
        check(crew, slab)
