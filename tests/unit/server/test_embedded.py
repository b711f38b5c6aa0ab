"""The embedded server: started, crashed, stopped and forgotten, with nothing left."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.descriptors import fetch_descriptor

from farpool.protocol.addresses import parse_address
from farpool.protocol.errors import FarpoolError, InvalidArgument, ServerLost, StaleSlab
from farpool.protocol.messages import Allocate, Attach, Attached, Detach, Done, Free, Open, ServerStat, Stat
from farpool.server.embedded import serve_embedded

Connect = Callable[..., Any]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("no_leak")
def test_all_that_was_made_is_removed() -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
        arena, socket_path = Path(server.arena), Path(parse_address(server.url).path)
        assert arena.parent == Path("/dev/shm")
        assert socket_path.is_socket()
    assert not arena.exists()
    assert not socket_path.parent.exists()
    with pytest.raises(ServerLost):
        _ = server.pid


def test_an_arena_of_ones_own_stays(memory_folder: Path, connect: Connect) -> None:
    arena = memory_folder / "mine"
    with serve_embedded(arena=arena, capacity="1MiB", transports=["tcp"]) as server:
        client = connect(server.url)
        kept = client.ask(Allocate(nbytes=10, name="kept", lease="persistent"), Attached).slab
        client.ask(Allocate(nbytes=10, name="gone"), Attached)
    assert [path.name for path in arena.glob("slab-*")] == [f"slab-{kept.id}"]
    with serve_embedded(arena=arena, capacity="1MiB", transports=["tcp"]) as server:
        client = connect(server.url)
        assert client.ask(Open(name="kept"), Attached).slab.generation == kept.generation
        assert client.ask(Stat(), ServerStat).epoch == 2


def test_a_crash_loses_nothing_that_a_session_can_resume(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB") as server:
        client = connect(server.tcp_url)
        slabs = [
            client.ask(Allocate(nbytes=10, lease=lease, transport="cxl"), Attached).slab
            for lease in ("session", 30.0, "persistent")
        ]
        url = server.tcp_url
        server.kill()
        with pytest.raises(ServerLost):
            _ = server.pid
        server.start()
        assert server.tcp_url == url
        other = connect(server.url)
        assert [other.ask(Open(id=slab.id), Attached).slab.state for slab in slabs] == [
            "orphaned",
            "live",
            "live",
        ]
        again = connect(server.tcp_url, resume=client.key)
        assert again.welcome.resumed
        assert again.welcome.epoch == client.welcome.epoch + 1
        for slab in slabs:
            reply = again.ask(Attach(id=slab.id, generation=slab.generation, transport="cxl"), Attached)
            assert reply.slab.state == "live"
            assert reply.slab.generation == slab.generation


def test_what_is_mapped_over_a_transport_stays_charged_without_it(memory_folder: Path, connect: Connect) -> None:
    options: dict[str, Any] = {"arena": memory_folder, "capacity": "1MiB", "unix": memory_folder / "f.sock"}
    with serve_embedded(**options) as server:
        client = connect(server.url)
        made = client.ask(Allocate(nbytes=10, lease="persistent", transport="cxl"), Attached)
        slab = made.slab
        held = fetch_descriptor(made.params, slab.id, slab.generation, writable=True)
        server.kill()
    with serve_embedded(**options, transports=["tcp"]) as server:
        other = connect(server.url)
        other.ask(Free(id=slab.id, generation=slab.generation), Done)
        assert other.ask(Stat(), ServerStat).reclaiming == 4096
        again = connect(server.url, resume=client.key)
        os.close(held)
        again.ask(Detach(id=slab.id, generation=slab.generation, transport="cxl"), Done)
        assert other.ask(Stat(), ServerStat).reclaiming == 0


def test_an_orderly_restart_ends_sessions(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
        client = connect(server.url)
        slab = client.ask(Allocate(nbytes=10), Attached).slab
        kept = client.ask(Allocate(nbytes=10, lease=30.0), Attached).slab
        server.restart()
        assert client.event()[0] == "draining"
        assert client.wait_for_end() == []
        with pytest.raises(FarpoolError, match="cannot be resumed"):
            connect(server.url, resume=client.key)
        other = connect(server.url)
        with pytest.raises(StaleSlab):
            other.ask(Attach(id=slab.id, generation=slab.generation, transport="tcp"), Attached)
        left = other.ask(Open(id=kept.id), Attached).slab.expires_in
        assert left is not None
        assert 0 < left <= 30


def test_a_suspended_server_blames_nobody(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"], session_timeout=1.0) as server:
        client = connect(server.url)
        slab = client.ask(Allocate(nbytes=10), Attached).slab
        server.suspend()
        # Longer than the time of silence, in which nothing comes.
        assert select.select([client.socket], [], [], 2.5) == ([], [], [])
        server.resume()
        assert client.ask(Open(id=slab.id), Attached).slab.id == slab.id
        assert "silence is counted anew" in server.log()


def failure_of(**options: Any) -> str:
    with pytest.raises(FarpoolError) as caught, serve_embedded(**options):
        pytest.fail("it started")
    return str(caught.value)


def test_a_server_that_cannot_start_says_why(memory_folder: Path) -> None:
    assert re.search(r"ended with code 2: .*pigeon.*--transports", failure_of(transports=["pigeon"]))
    with serve_embedded(arena=memory_folder, transports=["tcp"]) as server:
        message = failure_of(arena=memory_folder, transports=["tcp"])
        assert f"in use by the farpool server with pid {server.pid}" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity": "12XB"}, "12XB"),
        ({"capasity": 1}, "capasity is unknown; known are"),
        ({"session_timeout": "soon"}, "session_timeout: .*number"),
        ({"data_threads": 65}, "data_threads: .*64"),
    ],
)
def test_settings_that_cannot_be_right_are_refused_at_once(
    options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*arguments: object, **keywords: object) -> None:
        pytest.fail("a server was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    with pytest.raises(InvalidArgument, match=words), serve_embedded(**options):
        pytest.fail("it started")


PARENT = """
import os, sys, time
from farpool.server.embedded import serve_embedded
with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
    if sys.argv[1] == "fork" and os.fork() == 0:
        time.sleep(600)
    print(server.pid, server.arena, server.url, os.getpid(), flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_killed_parent_leaves_nothing(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pid, arena, url, _ = parent.stdout.readline().split()
        assert alive(int(pid))
        parent.kill()
        parent.wait()
        until(lambda: not alive(int(pid)))
        until(lambda: not Path(arena).exists() and not Path(parse_address(url).path).parent.exists())
        if how == "fork":
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_fork_of_the_parent_does_not_stop_the_server(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
        child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        connect(server.url)


def test_options_may_be_paths_and_a_plain_name(memory_folder: Path) -> None:
    with serve_embedded(
        capacity="1MiB", transports="tcp", arena=memory_folder, unix=memory_folder / "f.sock"
    ) as server:
        assert server.url == f"unix://{memory_folder}/f.sock"


def test_the_environment_speaks_to_us_and_not_to_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARPOOL_SESSION_TIMEOUT", "nonsense")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
        assert server.url
