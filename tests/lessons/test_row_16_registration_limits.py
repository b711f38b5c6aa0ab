"""Lessons row 16: registration fails past a limit, with an error that misleads.

Here the message says which limit was met - locked memory, the size of a region, or their number - and what raises it;
what is larger than a work request is split.
"""

from __future__ import annotations

import errno
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import farpool
from farpool.transports.rdma import binding as bindings

LIMITS = {"max_mr_size": 1 << 30, "max_mr": 4096}

LITTLE_MEMORY = """
import mmap, os, resource, sys
from farpool.native.checks import buffer_extent
from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma import binding as bindings
from farpool.transports.rdma.ports import open_port

name = sys.argv[1]
binding = bindings.load(name)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
os.setresuid(65534, 65534, 65534)       # without CAP_IPC_LOCK, which lifts the limit
port = open_port(binding, {})
domain = binding.domain(port.device)
large, small = mmap.mmap(-1, 64 << 20), mmap.mmap(-1, 4096)
try:
    domain.register(large, *buffer_extent(large), binding.LOCAL)
except TransportUnavailable as error:
    print(error)
domain.register(small, *buffer_extent(small), binding.LOCAL).close()
port.device.close()
"""


def message(nbytes: int, code: int) -> str:
    """Return what the pyverbs binding says of a registration that ended with *code*."""
    try:
        bindings.load("pyverbs")
    except farpool.TransportUnavailable as error:
        pytest.skip(error.message)
    from farpool.transports.rdma.pyverbs import handles, library

    refused = library.errors.PyverbsRDMAError("Failed to register a MR", code)
    return handles.registration_failure("mlx5_0", LIMITS, nbytes, refused).message


def test_the_message_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = 8 << 20

    def getrlimit(which: int) -> tuple[int, int]:
        return locked, locked

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    assert "limit of locked memory is 8388608 bytes" in message(64 << 20, errno.ENOMEM)
    assert "1073741824 bytes a region (max_mr_size)" in message(2 << 30, errno.EINVAL)
    assert "does the memory allow" in message(64 << 20, errno.EFAULT)
    locked = resource.RLIM_INFINITY
    assert "4096 regions (max_mr)" in message(64 << 20, errno.ENOMEM)


@pytest.mark.lab
@pytest.mark.root
@pytest.mark.parametrize("name", list(bindings.BINDINGS))
def test_too_little_locked_memory_is_called_that(rdma_device: str, name: str) -> None:
    try:
        bindings.load(name)
    except farpool.TransportUnavailable as error:
        pytest.skip(error.message)
    devices = [path for path in Path("/dev/infiniband").glob("uverbs*") if not path.stat().st_mode & stat.S_IWOTH]
    modes = {path: path.stat().st_mode for path in devices}
    try:
        for path in devices:
            path.chmod(0o666)
        done = subprocess.run(
            [sys.executable, "-c", LITTLE_MEMORY, name], capture_output=True, text=True, timeout=100, check=False
        )
    finally:
        for path, mode in modes.items():
            path.chmod(stat.S_IMODE(mode))
    assert done.returncode == 0, done.stderr
    assert f"{rdma_device} cannot register 67108864 bytes" in done.stdout
    assert "limit of locked memory is 1048576 bytes" in done.stdout
    assert "ulimit -l unlimited" in done.stdout


@pytest.mark.lab
def test_what_one_request_cannot_carry_is_split(rdma_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices carry 1 or 2 GiB a request; the client is told 64 KiB, so that the split shows."""
    import dataclasses

    from farpool.transports.rdma import client, ports

    def open_small(binding: bindings.Binding, settings: dict[str, object]) -> ports.Port:
        return dataclasses.replace(ports.open_port(binding, settings), max_message=65536)

    monkeypatch.setattr(client, "open_port", open_small)
    with (
        farpool.serve_embedded(capacity="16MiB", transports=["rdma"]) as server,
        farpool.connect(server.url, transport="rdma") as pool,
    ):
        slab = pool.allocate("1MiB")
        data = bytes(range(256)) * 4000
        assert slab.write(data, 100) == len(data)
        assert slab.read(len(data), 100) == data
