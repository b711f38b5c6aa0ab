"""``farpool serve`` as a process: its ready line, its refusals, its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

FARPOOL = [sys.executable, "-m", "farpool.cli.main"]


@pytest.fixture
def options(tmp_path: Path) -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        yield [
            "--arena",
            str(tmp_path / "arena"),
            "--unix",
            f"{folder}/f.sock",
            "--listen",
            "127.0.0.1:0",
            "--capacity",
            "8MiB",
        ]


def refused(*arguments: str) -> str:
    """Run a server that must not start; return its one line."""
    done = subprocess.run([*FARPOOL, "serve", *arguments], capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("farpool: ")]
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_serve_says_when_it_is_ready_and_ends_on_sigterm(options: list[str]) -> None:
    with subprocess.Popen([*FARPOOL, "serve", *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("farpool ready: unix:///")
            url = ready.split()[2]
            asked = [*FARPOOL, "status", "--wait", "10", "--json", "--url", url]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
            assert json.loads(done.stdout)["pid"] == process.pid
            assert "arena" in refused(*options[:2], "--unix", options[3] + "2", "--listen", "127.0.0.1:0")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not Path(options[3]).exists()


def test_a_port_in_use(options: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused(*options, "--listen", f"127.0.0.1:{port}")


def test_an_unknown_key_is_named_with_the_known_ones(options: list[str], tmp_path: Path) -> None:
    config = tmp_path / "farpool.toml"
    config.write_text('capacitty = "1GiB"\n')
    line = refused(*options, "--config", str(config))
    assert "capacitty" in line
    assert "capacity" in line


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_other_hosts_are_let_in_by_authentication_or_by_word_alone(options: list[str], address: str) -> None:
    line = refused(*options, "--listen", address)
    assert address in line
    assert 'authentication = "required"' in line
    assert "--insecure" in line
    for allowed in (["--insecure"], ["--authentication", "required"]):
        command = [*FARPOOL, "serve", *options, "--listen", address, *allowed]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("farpool ready: unix:///")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def test_an_audit_log_that_cannot_be_opened(options: list[str], tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "audit.jsonl", tmp_path):
        assert "audit_log" in refused(*options, "--audit-log", str(path))


@pytest.mark.parametrize("wrong", [["--transports", "pigeon"], ["--arena", "/proc"], ["--arena", "/dev/null"]])
def test_what_a_start_finds_out(options: list[str], wrong: list[str]) -> None:
    refused(*options, *wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--capacity", "12XB"],
        ["--capacity", "0"],
        ["--listen", "nowhere"],
        ["--data-listen", "127.0.0.1:99999"],
        ["--transports", ","],
        ["--log-level", "shout"],
        ["--authentication", "perhaps"],
        ["--session-timeout", "0"],
        ["--config", "/nonexistent/farpool.toml"],
        ["--unix", "/" + "x" * 200],
    ],
)
def test_what_cannot_be_configured(bare: Cli, options: list[str], wrong: list[str]) -> None:
    result = bare("serve", *options, *wrong)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("farpool: ")
    assert result.err.count("\n") == 1
