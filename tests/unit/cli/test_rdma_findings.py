"""What ``farpool doctor`` says of RDMA on machines that this one is not."""

from __future__ import annotations

import platform
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farpool.cli import doctor, rdma_findings
from farpool.cli.findings import Finding, Subject
from farpool.transports.rdma import sysfs

Cli = Callable[..., Any]

LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe77:0001"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a4d:0001"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def make_port(
    root: Path,
    device: str,
    *gids: tuple[str, str],
    state: str = "4: ACTIVE",
    layer: str = "Ethernet",
    netdev: str = "ens3",
    parent: str = "",
) -> None:
    """Make what the kernel shows of one device's port."""
    base = root / "class/infiniband" / device
    port = base / "ports/1"
    for part in ("gids", "gid_attrs/types", "gid_attrs/ndevs"):
        (port / part).mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text(f"{layer}\n")
    if parent:
        (base / "parent").write_text(f"{parent}\n")
    for index, (address, kind) in enumerate([*gids, (EMPTY, "")]):
        (port / "gids" / str(index)).write_text(f"{address}\n")
        if kind:
            (port / "gid_attrs/types" / str(index)).write_text(f"{kind}\n")
            (port / "gid_attrs/ndevs" / str(index)).write_text(f"{netdev}\n")


def look(root: Path) -> list[Finding]:
    return list(rdma_findings.devices(Subject(sys_root=root, modules_root=root)))


def test_a_port_shows_its_gids_and_the_one_that_is_chosen(tmp_path: Path) -> None:
    make_port(tmp_path, "mlx5_0", (LINK_LOCAL, V1), (LINK_LOCAL, V2), (MAPPED, V1), (MAPPED, V2))
    (found,) = look(tmp_path)
    assert (found.level, found.mend) == ("ok", "")
    assert found.message.startswith("mlx5_0 port 1: ACTIVE, Ethernet, MTU ")
    assert [tuple(row.values()) for row in found.rows] == [
        (0, V1, "fe80::5054:ff:fe77:1", "ens3", False),
        (1, V2, "fe80::5054:ff:fe77:1", "ens3", False),
        (2, V1, "::ffff:10.77.0.1", "ens3", False),
        (3, V2, "::ffff:10.77.0.1", "ens3", True),
    ]


def test_the_table_is_printed_aligned(tmp_path: Path, bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    make_port(tmp_path, "rxe0", (LINK_LOCAL, V2), (MAPPED, V2))
    (found,) = look(tmp_path)

    def examine(subject: Subject) -> Iterator[Finding]:
        yield found

    monkeypatch.setattr(doctor, "examine", examine)
    lines = [line.rstrip() for line in bare("doctor").out.splitlines() if "gid " in line or V2 in line]
    shown = [line[line.index("gid" if "gid" in line else str(index - 1)) :] for index, line in enumerate(lines)]
    assert shown == [
        "gid  type     address               netdev",
        "0    RoCE v2  fe80::5054:ff:fe77:1  ens3",
        "1    RoCE v2  ::ffff:10.77.0.1      ens3    chosen",
    ]
    assert '"rows": [{"gid": 0, "type": "RoCE v2"' in bare("doctor", "--json").out


@pytest.mark.parametrize(
    ("port", "cause", "mend"),
    [
        ({"state": "1: DOWN"}, "not active (it is DOWN): its link is down", "ip link set ens3 up"),
        ({"state": "1: DOWN", "netdev": "", "parent": "lab0"}, "its link is down", "ip link set lab0 up"),
        ({"state": "2: INIT", "layer": "InfiniBand"}, "no subnet manager", "ibstat nic0 1"),
    ],
)
def test_a_port_that_is_down_names_what_brings_it_up(
    tmp_path: Path, port: dict[str, str], cause: str, mend: str
) -> None:
    make_port(tmp_path, "nic0", (LINK_LOCAL, V2), **port)
    (found,) = look(tmp_path)
    assert (found.level, found.mend) == ("warn", mend)
    assert cause in found.message
    assert not any(row["chosen"] for row in found.rows), "nothing is chosen on a port that carries nothing"


def test_a_port_without_a_gid_wants_an_address(tmp_path: Path) -> None:
    make_port(tmp_path, "rxe0", parent="eth1")
    (found,) = look(tmp_path)
    assert (found.level, found.mend, found.rows) == ("warn", "ip addr add ADDRESS/24 dev eth1", ())
    assert "no GID on port 1" in found.message


def test_without_a_device_software_stands_in_where_it_can(tmp_path: Path) -> None:
    (found,) = look(tmp_path)
    assert (found.level, found.mend) == ("warn", "")
    modules = tmp_path / platform.release()
    modules.mkdir()
    (modules / "modules.dep").write_text("kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: a.ko\n")
    (tmp_path / "class/net/lo").mkdir(parents=True)
    assert [finding.mend for finding in look(tmp_path)] == [""]
    (tmp_path / "class/net/ens3").mkdir()
    (found,) = look(tmp_path)
    assert found.mend == "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev ens3"


def test_a_device_that_the_process_cannot_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_port(tmp_path, "mlx5_0")
    monkeypatch.setattr(sysfs, "DEVICE_FILES", tmp_path / "infiniband")
    assert "sees no file of RDMA device mlx5_0" in sysfs.why_no_device(tmp_path)
    (tmp_path / "infiniband").mkdir()
    (tmp_path / "infiniband/uverbs0").touch()
    assert "apt-get install -y ibverbs-providers" in sysfs.why_no_device(tmp_path)


@pytest.mark.parametrize(
    ("capabilities", "device", "words", "mend"),
    [
        ("0000000000000000", True, "too little to register slabs", "sudo prlimit --memlock=unlimited --pid $$"),
        ("0000000000004000", True, "unlimited for this user", ""),
        ("0000000000000000", False, "no RDMA device needs more", ""),
    ],
)
def test_locked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capabilities: str, device: bool, words: str, mend: str
) -> None:
    def getrlimit(which: int) -> tuple[int, int]:
        return 1 << 16, 1 << 16

    monkeypatch.setattr(resource, "getrlimit", getrlimit)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    if device:
        make_port(tmp_path, "mlx5_0")
    (found,) = rdma_findings.locked_memory(Subject(sys_root=tmp_path, proc_root=tmp_path))
    assert (found.level, found.mend) == ("warn" if mend else "ok", mend)
    assert words in found.message
