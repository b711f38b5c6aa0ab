"""How the command line ends: one line, the right exit code, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farpool.cli import main as entry
from farpool.cli.exit_codes import ExitCode, exit_code_of
from farpool.cli.output import one_line
from farpool.protocol import errors
from farpool.protocol.errors import FarpoolError

Cli = Callable[..., Any]
"""Runs one command; what it returns has ``code``, ``out`` and ``err``."""

FARPOOL = [sys.executable, "-m", "farpool.cli.main"]

CODES = {
    "AuthenticationFailed": 4,
    "CorruptData": 1,
    "DeadlineExceeded": 6,
    "ForkedSession": 1,
    "InvalidArgument": 2,
    "NameTaken": 4,
    "NotMappable": 1,
    "OutOfBounds": 1,
    "PermissionDenied": 4,
    "PoolFull": 5,
    "ProtocolError": 1,
    "QuotaExceeded": 5,
    "ReadOnly": 4,
    "RegionInUse": 1,
    "ServerLost": 6,
    "SlabBusy": 4,
    "SlabNotFound": 3,
    "StaleSlab": 3,
    "TransportUnavailable": 4,
    "UnsuitableBuffer": 1,
    "WrongAtomicDomain": 1,
}


def test_every_error_has_its_exit_code() -> None:
    assert set(CODES) == set(FarpoolError.kinds)
    for name, code in CODES.items():
        assert exit_code_of(getattr(errors, name)("no")) == code
    assert exit_code_of(FarpoolError("no")) == exit_code_of(OSError()) == ExitCode.OTHER


@pytest.mark.parametrize("text", ["two\nlines", "a\x1b[31mred\x07", "\u202eback", "tab\tbed\r\n"])
def test_a_message_is_one_printable_line(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["alloc"],
        ["ls", "--nonsense"],
        ["status", "--wait", "soon"],
        ["status", "--wait", "-1"],
        ["status", "--timeout", "nan"],
        ["status", "--timeout", "0"],
        ["ls", "--url", "http://localhost"],
        ["ls", "--url", "farpool://localhost:99999"],
        ["ls", "--url", "unix://"],
        ["alloc", "1MiB", "--lease", "forever"],
        ["alloc", "1MiB", "--lease", "session"],
    ],
)
def test_wrong_usage_is_one_line_and_code_2(bare: Cli, arguments: list[str]) -> None:
    result = bare(*arguments)
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("farpool: ")
    assert result.err.count("\n") == 1


def test_without_a_command_the_help_goes_to_stderr(bare: Cli) -> None:
    result = bare()
    assert result.code == 2
    assert result.out == ""
    assert "Commands:" in result.err


def test_help_names_every_command(bare: Cli) -> None:
    result = bare("--help")
    assert result.code == 0
    for name in entry.COMMANDS:
        assert f"\n  {name} " in result.out


@pytest.mark.parametrize("name", [*entry.COMMANDS])
def test_every_command_has_help(bare: Cli, name: str) -> None:
    result = bare(name, "--help")
    assert result.code == 0
    assert result.err == ""
    assert f"farpool {name}" in result.out


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_version(bare: Cli, arguments: list[str]) -> None:
    result = bare(*arguments)
    assert result.code == 0
    assert result.out.startswith("farpool 0.")


def test_a_server_that_is_not_there_is_code_6(bare: Cli, tmp_path: Path) -> None:
    result = bare("status", "--url", f"unix://{tmp_path}/none.sock", "--timeout", "1")
    assert result.code == 6
    assert result.err.count("\n") == 1


def test_waiting_for_a_server_ends_with_the_time_given(bare: Cli, tmp_path: Path) -> None:
    result = bare("status", "--url", f"unix://{tmp_path}/none.sock", "--wait", "0.3")
    assert result.code == 6


def test_an_error_of_ours_is_one_line_and_a_traceback_only_on_demand(
    bare: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("farpool.cli.version.version", fail)
    result = bare("version")
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "RuntimeError: two lines" in result.err
    monkeypatch.setenv("FARPOOL_DEBUG", "1")
    assert "Traceback" in bare("version").err


def test_ctrl_c_is_one_line_and_code_130(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("farpool.cli.version.version", interrupt)
    result = bare("version")
    assert result.code == 130
    assert result.err == "farpool: interrupted\n"


def test_a_closed_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*FARPOOL, "version"], stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""


def test_without_a_stdout_there_is_no_error() -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *FARPOOL, "version"]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*FARPOOL, "version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False
        )
    assert (done.returncode, done.stderr) == (1, "farpool: No space left on device\n")


def test_help_imports_neither_server_nor_client_nor_rich() -> None:
    program = (
        "import sys; from farpool.cli.main import main; main(['--help']);"
        "print([m for m in sys.modules if m.split('.')[0] in ('rich', 'uvloop', 'numpy', 'pydantic')"
        " or m.startswith(('farpool.server', 'farpool.client'))], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == "[]\n"


def test_client_commands_do_not_import_the_server() -> None:
    program = (
        "import sys; from importlib import import_module\n"
        "for name in 'status ls alloc free put get doctor version'.split():\n"
        "    import_module('farpool.cli.' + name)\n"
        "print([m for m in sys.modules if m.startswith(('farpool.server', 'uvloop', 'pydantic_settings'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"


def test_sigterm_while_waiting_ends_at_once(tmp_path: Path) -> None:
    command = [*FARPOOL, "status", "--wait", "60", "--url", f"unix://{tmp_path}/none.sock"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) as process:
        # The handler is set before anything else; a signal that comes earlier has the same end.
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (143, -signal.SIGTERM)
