"""Starts that must fail: exit code 2 and one line that says how to mend it; and stale sockets, which do not matter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.faults.conftest import NOBODY, WITHIN

import farpool

SERVE = [sys.executable, "-m", "farpool.cli.main", "serve"]
LOWERED = Path(__file__).with_name("lowered.py")


class Place:
    """Where a server of a test's own puts its things."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.arena = folder / "arena"
        self.socket = folder / "f.sock"
        self._stack = stack

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def options(self, *more: str, arena: Path | None = None, unix: Path | None = None) -> list[str]:
        """Return the options of a server here; *more* override them."""
        where = ["--arena", str(arena or self.arena), "--unix", str(unix or self.socket), "--capacity", "8MiB"]
        return [*SERVE, *where, "--listen", "127.0.0.1:0", *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start a server and wait until it is ready; it is killed in the end."""
        process = subprocess.Popen(self.options(*more), stdout=PIPE, stderr=subprocess.DEVNULL, text=True)
        self._stack.callback(end, process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("farpool ready: ")
        return process


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process, and wait for it."""
    process.kill()
    process.communicate()


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    """A directory with room for an arena and a socket."""
    with ExitStack() as stack:
        yield Place(folder, stack)


def refusal(command: Sequence[str]) -> str:
    """Run a server that must not start; return its one line."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WITHIN, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]  # those are the log's
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), done.stderr
    assert lines[0].startswith("farpool: ")
    return lines[0]


def works(url: str) -> bool:
    """Use the pool there."""
    with farpool.connect(url) as pool:
        slab = pool.allocate(8)
        slab.write(b"it works")
        return slab.read(8) == b"it works"


def test_a_second_server_on_an_arena_refuses_and_the_first_goes_on(place: Place, folder: Path) -> None:
    first = place.start()
    line = refusal(place.options(unix=folder / "second.sock"))
    assert str(place.arena) in line
    assert f"pid {first.pid}" in line
    assert not (folder / "second.sock").exists()
    assert works(place.url)


def test_a_socket_that_answers_is_left_alone(place: Place, folder: Path) -> None:
    place.start()
    line = refusal(place.options(arena=folder / "other"))
    assert str(place.socket) in line
    assert "--unix" in line
    assert works(place.url)


def test_a_stale_socket_is_replaced(place: Place) -> None:
    crashed = place.start()
    crashed.send_signal(signal.SIGKILL)
    crashed.wait()
    assert place.socket.is_socket()
    with pytest.raises(farpool.ServerLost):
        works(place.url)
    second = place.start()
    assert works(place.url)
    second.send_signal(signal.SIGTERM)
    assert second.wait(WITHIN) == 0
    assert not [path.name for path in place.socket.parent.iterdir() if path.is_socket()]


def test_what_is_no_socket_is_left_alone(place: Place) -> None:
    place.socket.write_text("somebody's notes")
    assert str(place.socket) in refusal(place.options())
    assert place.socket.read_text() == "somebody's notes"


@pytest.mark.parametrize("option", ["--listen", "--data-listen"])
def test_a_port_in_use_is_named(place: Place, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refusal(place.options(option, address))
    assert address in line
    assert option in line
    assert not place.socket.exists()


@pytest.mark.root
@pytest.mark.parametrize("case", ["of another user", "read-only", "below a read-only directory", "control folder"])
def test_an_arena_that_cannot_be_written(place: Place, folder: Path, as_root: None, case: str) -> None:
    sockets = folder / "sockets"
    for path in (sockets, place.arena, place.arena / ".farpool"):
        path.mkdir(mode=0o700)
        os.chown(path, NOBODY, NOBODY)
    arena = place.arena
    if case == "of another user":
        os.chown(place.arena, 1, 1)
        place.arena.chmod(0o755)
    elif case == "read-only":
        place.arena.chmod(0o500)
    elif case == "control folder":
        (place.arena / ".farpool").chmod(0o500)
    else:
        place.arena.chmod(0o500)
        arena = place.arena / "new"
    command = place.options(arena=arena, unix=sockets / "f.sock")
    line = refusal([sys.executable, str(LOWERED), str(NOBODY), *command[len(SERVE) - 1 :]])
    assert str(arena) in line
    assert any(word in line for word in ("--arena", "chmod", "chown", "name a directory")), line
    assert not list(sockets.iterdir())
