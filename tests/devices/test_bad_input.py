"""What is wrong with a memory device is one line with cause and command, from serve, from connect and from doctor.

On ``FARPOOL_TEST_DAX``, which is formatted first; with files in its place the same is in
``tests/unit/cli/test_bad_devices.py``. A device cannot be made too small here: its size is the region's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.cli.cxl_findings import dax_devices
from farpool.cli.findings import Finding, Subject
from farpool.cli.main import main
from farpool.transports.cxl.devices import open_device
from farpool.transports.cxl.superblock import PAGE_BYTES, Superblock

pytestmark = [pytest.mark.lab, pytest.mark.root]

FARPOOL = [sys.executable, "-m", "farpool.cli.main"]
START_SECONDS = 200


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Format the device before and after."""
    path = os.environ.get("FARPOOL_TEST_DAX", "")
    if not path:
        pytest.skip("there is no memory device for tests here; in the lab: FARPOOL_TEST_DAX=$LAB_DAX")
    monkeypatch.setenv("FARPOOL_STATE_DIR", str(tmp_path / "state"))
    assert main(["format", "--yes", path]) == 0
    yield path
    assert main(["format", "--yes", path]) == 0


Refuse = Callable[..., str]


@pytest.fixture
def refused(device: str, tmp_path: Path) -> Refuse:
    """Start a server of the device, which must refuse; return its line."""

    def serve() -> str:
        command = [*FARPOOL, "serve", "--arena", device, "--listen", "127.0.0.1:0", "--unix", str(tmp_path / "s")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("farpool: ")]
        assert (done.returncode, done.stdout) == (2, "")
        return line

    return serve


def write_page(path: str, page: bytes) -> None:
    opened = open_device(path, writable=True)
    with opened.map(0, PAGE_BYTES, writable=True) as mapping, memoryview(mapping) as view:
        view[: len(page)] = page
    opened.close()


def finding(path: str) -> Finding:
    name = Path(path).name
    return next(found for found in dax_devices(Subject()) if found.message.startswith(name))


def served(path: str, folder: Path) -> Any:
    return farpool.serve_embedded(arena=path, capacity="8MiB", transports=["cxl"], state_dir=str(folder / "state"))


def test_a_foreign_superblock(device: str, refused: Refuse, tmp_path: Path) -> None:
    opened = open_device(device, writable=False)
    other = Superblock(b"another's number", opened.nbytes, opened.align, 8).encode()
    opened.close()
    with served(device, tmp_path) as server:
        write_page(device, other)
        with pytest.raises(
            farpool.TransportUnavailable, match=f"{device} is not the device of this pool.*farpool doctor"
        ):
            farpool.connect(server.url, transport="cxl", timeout=60)
    line, found = refused(), finding(device)
    assert "carries the foreign arena" in line
    assert line.endswith(f"if what it holds may go, run: farpool format --yes {device}")
    assert "knows nothing" in found.message
    assert (found.level, found.mend) == ("warn", f"farpool format {device}")


def test_something_else_than_an_arena(device: str, refused: Refuse) -> None:
    write_page(device, b"somebody's database")
    line, found = refused(), finding(device)
    assert (
        f"something else than an arena of farpool; if what it holds may go, run: farpool format --yes {device}" in line
    )
    assert (found.level, found.mend) == ("warn", f"farpool format --yes {device}")


def test_a_device_that_a_server_has(device: str, refused: Refuse, tmp_path: Path) -> None:
    with served(device, tmp_path) as server:
        busy = (
            f"{device} is busy: the farpool server with pid {server.pid} has it; stop that one; run: kill {server.pid}"
        )
        assert busy in refused()
        assert finding(device).message.endswith(f"served by pid {server.pid}")
        farpool.connect(server.url, transport="cxl", timeout=60).close()


@pytest.fixture
def as_memory(device: str) -> Iterator[str]:
    """Give the device to the kernel as ordinary memory, offline, and take it back with the command that we print."""
    name = Path(device).name
    daxctl = shutil.which("daxctl")
    if daxctl is None or subprocess.run(["modprobe", "kmem"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel has no kmem, or there is no daxctl")
    Path("/sys/devices/system/memory/auto_online_blocks").write_text("offline")
    command = [daxctl, "reconfigure-device", "--mode=system-ram", "--no-online", "--force", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the kernel does not take {name} as memory: {done.stderr.strip()}")
    yield device
    found = finding(device)
    if found.mend:
        subprocess.run(found.mend, shell=True, check=True, capture_output=True)
    assert finding(device).level == "ok"


def test_a_device_in_system_ram_mode(as_memory: str, refused: Refuse) -> None:
    name = Path(as_memory).name
    mend = f"daxctl reconfigure-device --force --mode=devdax {name}"
    line, found = refused(), finding(as_memory)
    assert f"{name} is in system-ram mode: the kernel uses it as ordinary memory; run: " in line
    assert line.endswith(mend)
    assert (found.level, found.mend.endswith(mend)) == ("warn", True)
    with pytest.raises(farpool.TransportUnavailable, match="system-ram mode"):
        open_device(as_memory, writable=False)  # what a client of another host's server does
