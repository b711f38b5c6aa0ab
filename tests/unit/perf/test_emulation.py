"""Which figures say nothing about hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from farpool.perf.emulation import is_emulated

BRIDGE = "sys/bus/pci/devices/0000:00:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Make what a real machine with an RDMA card says of itself."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Intel(R) Xeon(R) Processor\n")
    (tmp_path / BRIDGE).mkdir(parents=True)
    (tmp_path / BRIDGE / "subsystem_vendor").write_text("0x8086\n")
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    for name in ("gids", "gid_attrs/types"):
        (port / name).mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "gids/0").write_text("0000:0000:0000:0000:0000:ffff:0a4d:0001\n")
    (port / "gid_attrs/types/0").write_text("RoCE v2\n")
    return tmp_path


def make_guest(machine: Path) -> None:
    (machine / BRIDGE / "subsystem_vendor").write_text("0x1af4\n")


def test_cxl_on_shared_memory_is_emulated(machine: Path) -> None:
    assert is_emulated("cxl", str(machine), machine)
    assert is_emulated("cxl", "/dev/shm/nonesuch", machine)


def test_cxl_on_a_device_is_not_unless_qemu_made_it(machine: Path) -> None:
    for arena in ("/dev/null", "/dev/dax99.0"):  # a device here, and one of another host
        assert not is_emulated("cxl", arena, machine)
    make_guest(machine)
    assert is_emulated("cxl", "/dev/null", machine)


def test_a_machine_that_says_nothing_of_itself_is_real(tmp_path: Path) -> None:
    assert not is_emulated("cxl", "/dev/null", tmp_path)


def test_rdma_is_emulated_where_the_kernel_plays_the_device(machine: Path) -> None:
    assert not is_emulated("rdma", "/dev/null", machine)
    make_guest(machine)
    assert not is_emulated("rdma", "/dev/null", machine)  # a card can be passed through to a guest
    (machine / "sys/class/infiniband/mlx5_0/parent").write_text("eth0\n")
    assert is_emulated("rdma", "/dev/null", machine)


def test_tcp_has_no_device(machine: Path) -> None:
    make_guest(machine)
    assert not is_emulated("tcp", "/dev/null", machine)


@pytest.mark.parametrize("transport", ["cxl", "rdma", "tcp", "control"])
def test_on_an_emulated_processor_all_is(machine: Path, transport: str) -> None:
    (machine / "proc/cpuinfo").write_text("model name\t: QEMU TCG CPU version 2.5+\n")
    assert is_emulated(transport, "/dev/null", machine)
