"""``farpool format``, and what ``farpool serve`` says of a device that it may not take."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    path.write_bytes(b"somebody else's" + bytes(8 << 20))
    return path


def test_it_says_what_is_there_and_does_nothing_unasked(bare: Cli, device: Path) -> None:
    result = bare("format", device)
    assert result.code == 4
    assert f"something else than an arena of farpool; to lose that, run: farpool format --yes {device}" in result.err
    assert device.read_bytes().startswith(b"somebody else's")


def test_it_gives_the_device_up(bare: Cli, device: Path) -> None:
    assert bare("format", "--yes", device).code == 0
    assert "no server has taken yet" in bare("format", device).err


def test_a_device_in_use_is_left_alone(bare: Cli, device: Path) -> None:
    with device.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = bare("format", "--yes", device)
    assert result.code == 4
    assert "busy" in result.err


def test_no_such_device(bare: Cli, tmp_path: Path) -> None:
    assert "run: daxctl list -D" in bare("format", tmp_path / "none").err


def test_serve_refuses_in_one_line(device: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "farpool.cli.main", "serve", "--state-dir", str(tmp_path), "--unix"]
    command += [str(tmp_path / "s"), "--listen", "127.0.0.1:0"]
    for arena, words in (
        (str(device), f"run: farpool format --yes {device}"),
        ("/dev/dax99.0", "run: daxctl list -D"),
        ("/dev/null", "neither a DAX device nor a file"),
    ):
        done = subprocess.run([*command, "--arena", arena], capture_output=True, text=True, timeout=60, check=False)
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("farpool: ")]
        assert done.returncode == 2
        assert words in line
    refused = [*command, "--arena", str(tmp_path / "a"), "--coherence", "software"]
    done = subprocess.run(refused, capture_output=True, text=True, timeout=60, check=False)
    assert "serve with --transports cxl" in done.stderr
