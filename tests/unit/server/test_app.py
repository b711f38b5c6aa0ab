"""The server as a process: its refusals, its signals, its ready line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from farpool.protocol.errors import PermissionDenied
from farpool.protocol.messages import Allocate, Attached, ServerStat, Stat

Connect = Callable[..., Any]


class Process:
    """A server that runs as ``python -m farpool.server``, with a configuration file."""

    def __init__(self, folder: Path, arena: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/f.sock"
        self.values: dict[str, Any] = {
            "arena": str(arena),
            "unix": f"{folder}/f.sock",
            "listen": "127.0.0.1:0",
            "capacity": "1MiB",
            "transports": ["tcp"],
            "log_format": "json",
        }
        self.environment: dict[str, str] = {}
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self.running: list[subprocess.Popen[str]] = []

    def configure(self, **values: Any) -> None:
        self.values |= values
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in self.values.items()]
        (self.folder / "farpool.toml").write_text("".join(lines))

    def launch(self) -> subprocess.Popen[str]:
        self.configure()
        process = subprocess.Popen(
            [sys.executable, "-m", "farpool.server"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
            env={**os.environ, "FARPOOL_CONFIG": str(self.folder / "farpool.toml"), **self.environment},
        )
        self.running.append(process)
        return process

    def start(self) -> subprocess.Popen[str]:
        process = self.launch()
        assert process.stdout is not None
        self.ready = process.stdout.readline()
        assert self.ready.startswith(f"farpool ready: {self.url} farpool://127.0.0.1:"), self.log()
        return process

    def log(self) -> str:
        return os.pread(self.stderr.fileno(), 1 << 20, 0).decode()

    def refusal(self) -> str:
        """Start a server that must not come up, and return its last line."""
        process = self.launch()
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 2
        assert output == ""
        assert "Traceback" not in self.log()
        lines = [line for line in self.log().splitlines() if line.startswith("farpool: ")]
        assert len(lines) == 1
        return lines[0]

    def close(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()
        self.stderr.close()


@pytest.fixture
def process(memory_folder: Path) -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as folder:
        made = Process(Path(folder), memory_folder / "arena")
        yield made
        made.close()


def test_it_listens_before_it_shows_itself_and_leaves_no_socket(process: Process, connect: Connect) -> None:
    running = process.start()
    connect(process.ready.split()[-1]).ask(Stat(), ServerStat)
    connect(process.url).ask(Stat(), ServerStat)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == 0
    assert [path.name for path in process.folder.iterdir()] == ["farpool.toml"]


def test_a_crashed_servers_socket_is_replaced(process: Process, connect: Connect) -> None:
    running = process.start()
    running.kill()
    running.wait()
    assert (process.folder / "f.sock").exists()
    process.start()
    connect(process.url)


def test_a_used_port_is_refused(process: Process) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process.configure(listen=listen)
        line = process.refusal()
    assert listen in line
    assert "--listen" in line
    assert not (process.folder / "f.sock").exists()


def test_a_used_data_port_is_refused(process: Process) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process.configure(data_listen=f"127.0.0.1:{taken.getsockname()[1]}")
        line = process.refusal()
    assert "--data-listen" in line


def test_a_failed_start_removes_the_arena_that_it_made_and_no_other(process: Process, connect: Connect) -> None:
    arena = Path(process.values["arena"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process.configure(listen=listen)
        process.refusal()
        assert not arena.exists()
        process.configure(listen="127.0.0.1:0")
        running = process.start()
        kept = connect(process.url).ask(Allocate(nbytes=1, lease="persistent"), Attached).slab
        running.kill()
        running.wait()
        process.configure(listen=listen)
        assert process.launch().wait(60) == 2
    assert (arena / f"slab-{kept.id}").exists()


def test_a_misspelt_variable_is_logged_once(process: Process) -> None:
    process.environment = {"FARPOOL_CAPASITY": "1GiB", "FARPOOL_URL": "unix:///x"}
    process.start()
    lines = [json.loads(line) for line in process.log().splitlines()]
    (names,) = [line["names"] for line in lines if line["event"].startswith("environment variables ignored")]
    assert "FARPOOL_CAPASITY" in names
    assert "FARPOOL_URL" not in names


def test_a_second_server_is_refused_on_the_arena_and_on_the_socket(process: Process) -> None:
    running = process.start()
    other = Process(process.folder, Path(process.values["arena"]))
    try:
        assert f"pid {running.pid}" in other.refusal()
    finally:
        other.close()
    third = Process(process.folder, Path(process.values["arena"]).with_name("third"))
    try:
        assert f"a server answers at {process.folder}/f.sock already" in third.refusal()
    finally:
        third.close()


def test_an_unknown_key_is_refused(process: Process) -> None:
    process.configure(colour="red")
    line = process.refusal()
    assert f'{process.folder}/farpool.toml: unknown key "colour"' in line


def test_a_damaged_catalog_is_refused(process: Process) -> None:
    control = Path(process.values["arena"]) / ".farpool"
    control.mkdir(parents=True, mode=0o700)
    control.parent.chmod(0o700)
    (control / "catalog.sqlite").write_bytes(b"rubbish " * 1000)
    assert "is damaged" in process.refusal()


def test_hangup_reloads_what_can_be_reloaded(process: Process, connect: Connect) -> None:
    running = process.start()
    client = connect(process.url)
    process.configure(capacity="3MiB", max_sessions=7)
    running.send_signal(signal.SIGHUP)
    while client.ask(Stat(), ServerStat).capacity != 3 << 20:
        assert running.poll() is None
    process.configure(colour="red")
    running.send_signal(signal.SIGHUP)
    while "settings not reloaded" not in process.log():
        assert client.ask(Stat(), ServerStat).capacity == 3 << 20
    reloaded = next(json.loads(line) for line in process.log().splitlines() if "settings reloaded" in line)
    assert reloaded["changed"] == {"capacity": 3 << 20}
    assert reloaded["need_a_restart"] == ["max_sessions"]
    acts = [json.loads(line) for line in process.log().splitlines() if '"reload"' in line]
    assert [line["outcome"] for line in acts] == ["done", "failed"]
    assert "colour" in acts[1]["reason"]


def test_a_drain_tells_refuses_and_ends_when_clients_are_idle(process: Process, connect: Connect) -> None:
    process.configure(drain_timeout=60)
    running = process.start()
    client = connect(process.url)
    client.ask(Allocate(nbytes=1), Attached)
    running.send_signal(signal.SIGTERM)
    assert client.event() == ("draining", {})
    assert client.ask(Stat(), ServerStat).state == "draining"
    with pytest.raises(PermissionDenied, match="draining"):
        client.ask(Allocate(nbytes=1), Attached)
    assert not (process.folder / "f.sock").exists()
    client.wait_for_end()
    assert running.wait(30) == 0
    assert list(Path(process.values["arena"]).glob("slab-*")) == []


def test_a_second_signal_ends_at_once(process: Process, connect: Connect) -> None:
    process.configure(drain_timeout=600)
    running = process.start()
    client = connect(process.url)
    running.send_signal(signal.SIGTERM)
    assert client.event() == ("draining", {})
    running.send_signal(signal.SIGINT)
    while running.poll() is None:
        try:
            client.ask(Stat(), ServerStat)
        except (EOFError, OSError):
            break
    assert running.wait(30) == 0


def test_the_service_manager_is_told(process: Process) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{process.folder}/notify")
        manager.settimeout(30)
        process.environment["NOTIFY_SOCKET"] = f"{process.folder}/notify"
        running = process.start()
        assert manager.recv(1000).startswith(b"READY=1")
        running.send_signal(signal.SIGHUP)
        assert manager.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(1000) == b"READY=1"
        running.send_signal(signal.SIGTERM)
        assert manager.recv(1000) == b"STOPPING=1"
        assert running.wait(30) == 0
