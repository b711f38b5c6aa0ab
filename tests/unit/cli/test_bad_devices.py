"""What is wrong with a device is one line with the cause and a command, the same from serve, connect and doctor.

Files stand for memory devices here, and trees of files for sysfs; with devices the same is in ``tests/rdma`` and
``tests/devices``.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import farpool
from farpool.cli import rdma_findings
from farpool.cli.cxl_findings import describe_contents
from farpool.cli.findings import Finding, Subject
from farpool.server.embedded import EmbeddedServer
from farpool.transports.cxl.devices import open_device
from farpool.transports.cxl.superblock import Superblock

UNIT = 2 << 20
Spoil = Callable[[Path], None]


def serve(folder: Path, *options: str) -> str:
    """Start a server that must refuse; return its line."""
    command = [sys.executable, "-m", "farpool.cli.main", "serve", "--listen", "127.0.0.1:0", *options]
    command += ["--state-dir", str(folder / "state"), "--unix", str(folder / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("farpool: ")]
    assert (done.returncode, done.stdout) == (2, "")
    return line


def doctor(path: Path) -> Finding:
    return describe_contents(path.name, open_device(str(path), writable=True))


# Memory devices -----------------------------------------------------------------------------------------


def too_small(path: Path) -> None:
    os.truncate(path, UNIT)


def foreign(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(Superblock(b"another's number", 8 * UNIT, UNIT, 8).encode())


def no_arena(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"somebody's database")


def damaged(path: Path) -> None:
    foreign(path)
    with path.open("r+b") as file:
        file.seek(60)
        file.write(b"\xff")


@pytest.mark.parametrize(
    ("spoil", "serve_says", "doctor_says", "mend"),
    [
        (too_small, "is too small: 2 MiB", "too small for an arena", "daxctl reconfigure-device --size=4194304 device"),
        (foreign, "carries the foreign arena", "knows nothing", "farpool format"),
        (no_arena, "something else than an arena", "something else than an arena", "farpool format --yes"),
        (damaged, "superblock is damaged", "superblock is damaged", "farpool format --yes"),
    ],
)
def test_a_memory_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, serve_says: str, doctor_says: str, mend: str
) -> None:
    monkeypatch.setenv("FARPOOL_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "device"
    path.write_bytes(bytes(8 * UNIT))
    spoil(path)
    line, found = serve(tmp_path, "--arena", str(path)), doctor(path)
    assert serve_says in line
    assert mend in line
    assert (found.level, doctor_says in found.message) == ("warn", True)
    assert found.mend.startswith(mend)


def test_a_memory_device_that_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(8 * UNIT))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert f"is busy: the farpool server with pid {os.getpid()} has it; stop that one; run: kill" in serve(
            tmp_path, "--arena", str(path)
        )
        assert f"served by pid {os.getpid()}" in doctor(path).message


@pytest.mark.parametrize(("spoil", "cause"), [(foreign, "is not the device of this pool"), (damaged, "is damaged")])
def test_a_client_says_the_same_of_its_hosts_device(tmp_path: Path, spoil: Spoil, cause: str) -> None:
    path = tmp_path / "device"
    path.write_bytes(bytes(8 * UNIT))
    settings: dict[str, Any] = {"arena": path, "state_dir": str(tmp_path / "state"), "capacity": "14MiB"}
    with farpool.serve_embedded(**settings) as server:
        spoil(path)
        with pytest.raises(farpool.TransportUnavailable, match=cause) as caught:
            farpool.connect(server.url, transport="cxl")
    assert "run: farpool doctor" in str(caught.value)
    assert "\n" not in str(caught.value)


# RDMA devices -------------------------------------------------------------------------------------------


@pytest.fixture
def without_rdma() -> None:
    if any(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this machine has an RDMA device")


@pytest.mark.usefixtures("without_rdma")
def test_without_an_rdma_device_a_server_for_rdma_alone_refuses(tmp_path: Path) -> None:
    line = serve(tmp_path, "--transports", "rdma", "--arena", str(tmp_path / "arena"))
    (found,) = rdma_findings.devices(Subject())
    assert line.startswith("farpool: no transport that was asked for can be offered. rdma: ")
    assert unavailable() in line
    assert found.level == "warn" or "libibverbs" in line


@pytest.mark.usefixtures("without_rdma")
def test_without_an_rdma_device_others_are_served_and_the_client_is_told(rdma_beside_tcp: EmbeddedServer) -> None:
    (line,) = [line for line in rdma_beside_tcp.log().splitlines() if "transport unavailable" in line]
    with pytest.raises(farpool.TransportUnavailable) as caught:
        farpool.connect(rdma_beside_tcp.url, transport="rdma")
    assert unavailable() in line
    assert unavailable() in str(caught.value)
    assert "\n" not in str(caught.value)
    with farpool.connect(rdma_beside_tcp.url) as pool:
        assert pool.transport == "tcp"


@pytest.fixture
def rdma_beside_tcp() -> Any:
    with farpool.serve_embedded(capacity="1MiB", transports=["rdma", "tcp"]) as server:
        yield server


def unavailable() -> str:
    """Return the start of what this machine lacks: the library, or a device."""
    from farpool.transports.rdma import binding

    try:
        binding.load()
    except farpool.TransportUnavailable as error:
        return error.message[:20]
    return "there is no RDMA device here; load the NIC's driver"


@pytest.mark.parametrize("index", ["256", "-1", "two"])
def test_a_gid_index_that_no_port_has_is_refused(tmp_path: Path, index: str) -> None:
    pytest.importorskip("farpool.native.verbs", reason="built without rdma", exc_type=ImportError)
    (tmp_path / "farpool.toml").write_text(f'[transport_settings.rdma]\ngid_index = "{index}"\n')
    options = [
        "--transports",
        "tcp,rdma",
        "--arena",
        str(tmp_path / "arena"),
        "--config",
        str(tmp_path / "farpool.toml"),
    ]
    line = serve(tmp_path, *options)
    assert f"transport rdma: rdma's gid_index is a number from 0 to 255, not '{index}'" in line
