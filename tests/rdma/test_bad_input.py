"""What is wrong with an RDMA device is one line with cause and command, from serve, from connect and from doctor.

On a real driver; what needs no device is in ``tests/unit/cli/test_bad_devices.py``.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import farpool
from farpool.cli import rdma_findings
from farpool.cli.findings import Finding, Subject
from farpool.server.embedded import EmbeddedServer
from farpool.transports.rdma import binding as bindings
from farpool.transports.rdma.sysfs import device_names, link_of, netdev_of

pytestmark = [pytest.mark.lab, pytest.mark.root]

SERVE = [sys.executable, "-m", "farpool.cli.main", "serve", "--listen", "127.0.0.1:0", "--capacity", "8MiB"]
START_SECONDS = 200

CONNECT_AS_NOBODY = """
import os, resource, sys
import farpool
from farpool.cli import rdma_findings
from farpool.cli.findings import Subject
farpool.connect(sys.argv[1], transport="rdma", timeout=60).close()  # loads what another user may not be able to read
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
os.setresuid(65534, 65534, 65534)       # without CAP_IPC_LOCK, which lifts the limit
try:
    farpool.connect(sys.argv[1], transport="rdma", timeout=60)
except farpool.TransportUnavailable as error:
    print(error)
(found,) = rdma_findings.locked_memory(Subject())
print(found.level, found.message, found.mend, sep=" | ")
"""
LITTLE_MEMORY = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536"]
"""A server of any other user would need an interpreter that this user can read."""


@pytest.fixture(scope="module", autouse=True)
def usable() -> None:
    """Pass the module over before its server is started."""
    if not device_names():
        pytest.skip(
            "there is no RDMA device here; the lab has one: farpool-lab run --rdma -- python -m pytest tests/rdma"
        )
    try:
        bindings.load()
    except farpool.TransportUnavailable as error:
        pytest.skip(error.message)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one, for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def server(usable: None) -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="8MiB", transports=["rdma", "tcp"]) as running:
        yield running


def refused(folder: Path, settings: str) -> str:
    """Start a server for rdma alone, which must refuse; return its line."""
    options = ["--transports", "rdma", "--arena", str(folder / "arena"), "--unix", str(folder / "s")]
    environment = os.environ | {"FARPOOL_TRANSPORT_SETTINGS": settings}
    done = subprocess.run(
        [*SERVE, *options], capture_output=True, text=True, timeout=START_SECONDS, check=False, env=environment
    )
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("farpool: ")]
    assert (done.returncode, done.stdout) == (2, "")
    return line


def not_connected(url: str) -> str:
    with pytest.raises(farpool.TransportUnavailable) as caught:
        farpool.connect(url, transport="rdma", timeout=60)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def port_finding(device: str) -> Finding:
    return next(found for found in rdma_findings.devices(Subject()) if found.message.startswith(f"{device} port 1"))


# The link -----------------------------------------------------------------------------------------------


def until(device: str, *, active: bool) -> None:
    for _ in range(600):
        if link_of(device, 1).active is active:
            return
        subprocess.run(["sleep", "0.1"], check=True)
    pytest.fail(f"the port of {device} is {link_of(device, 1)}")


@pytest.fixture
def netdev(rdma_device: str, server: EmbeddedServer) -> Iterator[str]:
    """Take down the link below the device while the server runs; only in a guest, which has nobody else's."""
    if os.environ.get("LAB_RDMA_DEV") != rdma_device:
        pytest.skip("only in the lab is the link this test's to take down")
    name = netdev_of(rdma_device, 1)
    subprocess.run(["ip", "link", "set", name, "down"], check=True)
    try:
        until(rdma_device, active=False)
        yield name
    finally:
        subprocess.run(["ip", "link", "set", name, "up"], check=True)
        until(rdma_device, active=True)


def test_a_link_that_is_down(rdma_device: str, server: EmbeddedServer, netdev: str, folder: Path) -> None:
    cause = f"port 1 of RDMA device {rdma_device} is not active (it is DOWN): its link is down"
    expected = f"{cause}; run: ip link set {netdev} up"
    assert expected in refused(folder, "{}")
    assert expected in not_connected(server.url)
    found = port_finding(rdma_device)
    assert (found.level, found.mend) == ("warn", f"ip link set {netdev} up")
    assert cause in found.message


# The GID ------------------------------------------------------------------------------------------------


def test_a_gid_index_that_the_port_does_not_have(rdma_device: str, server: EmbeddedServer, folder: Path) -> None:
    found = port_finding(rdma_device)
    (best,) = [row for row in found.rows if row["chosen"]]
    expected = f"RDMA device {rdma_device} has no GID 200 on port 1; it has "
    mend = f"take gid_index={best['gid']}, or leave that out for the same"
    for line in (refused(folder, '{"rdma": {"gid_index": 200}}'), not_connected(f"{server.url}?gid_index=200")):
        assert expected in line
        assert mend in line
    assert (found.level, best["type"]) == ("ok", "RoCE v2")
    assert re.search(r"ACTIVE, Ethernet, MTU \d{3,4}$", found.message)
    farpool.connect(f"{server.url}?gid_index={best['gid']}", transport="rdma", timeout=60).close()


# Locked memory ------------------------------------------------------------------------------------------


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """Let every user open the devices."""
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in Path("/dev/infiniband").glob("uverbs*")}
    try:
        for path in modes:
            path.chmod(0o666)
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.mark.usefixtures("open_to_all")
def test_too_little_locked_memory_of_a_client(rdma_device: str, server: EmbeddedServer) -> None:
    command = [sys.executable, "-c", CONNECT_AS_NOBODY, server.tcp_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    refusal, finding = done.stdout.splitlines()
    assert f'transport "rdma" cannot be used here: RDMA device {rdma_device} cannot register' in refusal
    assert "the limit of locked memory is 65536 bytes in all; raise it: ulimit -l unlimited" in refusal
    assert finding.startswith("warn | limit 64 KiB: too little to register slabs for rdma")
    assert finding.endswith("| sudo prlimit --memlock=unlimited --pid $$")


def test_too_little_locked_memory_of_a_server(folder: Path) -> None:
    options = ["--transports", "rdma", "--arena", str(folder / "arena"), "--unix", str(folder / "s")]
    command = [*LITTLE_MEMORY, *SERVE, *options, "--log-format", "json"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            ready = process.stdout.readline()
            assert ready.startswith("farpool ready: "), (folder / "log").read_text()
            with farpool.connect(ready.split()[2], transport="rdma", timeout=60) as pool:
                with pytest.raises(farpool.TransportUnavailable, match="limit of locked memory is 65536 bytes"):
                    pool.allocate("1MiB")
                assert pool.allocate(4096).write(b"fits") == 4
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(START_SECONDS) == 0
    (line,) = [line for line in (folder / "log").read_text().splitlines() if "locked memory is short" in line]
    assert "only 64 KiB of slabs can be registered" in line
    assert "run: sudo prlimit --memlock=unlimited --pid $$, or LimitMEMLOCK=infinity in the systemd unit" in line
