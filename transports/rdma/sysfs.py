"""What the kernel shows of RDMA devices without opening them, and what is amiss with one: cause and command in a line.

Connections choose their GID here, and ``farpool doctor`` shows the same choice. RoCE v2 with an IPv4 address comes
first (it is routed, and firewalls know it), then RoCE v2 with a global IPv6 address, then the rest.
"""

from __future__ import annotations

import ipaddress
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = [
    "SYS_ROOT",
    "Gid",
    "Link",
    "best_gid",
    "device_names",
    "gid_table",
    "link_of",
    "netdev_of",
    "port_numbers",
    "why_inactive",
    "why_no_device",
    "why_no_gid",
]

SYS_ROOT: Final = Path("/sys")
MODULES_ROOT: Final = Path("/lib/modules")
DEVICE_FILES: Final = Path("/dev/infiniband")


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table."""

    index: int
    address: str
    kind: str
    """``RoCE v2``, ``IB/RoCE v1`` or empty where the kernel does not say."""
    interface: str

    @property
    def rank(self) -> int:
        """Low is better."""
        address = ipaddress.IPv6Address(self.address)
        routed = self.kind == "RoCE v2"
        if routed and address.ipv4_mapped is not None:
            return 0
        if routed and not address.is_link_local:
            return 1
        return 2 if routed else 3

    def __str__(self) -> str:
        return f"{self.index} ({self.kind or 'InfiniBand'} {self.address})"


@dataclass(frozen=True, slots=True)
class Link:
    """A port's state (``ACTIVE``, ``DOWN``, ``INIT``, ...) and link layer (``Ethernet``, ``InfiniBand``)."""

    state: str
    layer: str

    @property
    def active(self) -> bool:
        """Tell whether the port can carry a connection."""
        return self.state == "ACTIVE"


def device_names(sys_root: Path = SYS_ROOT) -> list[str]:
    """Return the names of this machine's RDMA devices."""
    return _names(sys_root / "class/infiniband")


def port_numbers(device: str, sys_root: Path = SYS_ROOT) -> list[int]:
    """Return the numbers of a device's ports."""
    return sorted(int(name) for name in _names(sys_root / "class/infiniband" / device / "ports"))


def link_of(device: str, port: int, sys_root: Path = SYS_ROOT) -> Link:
    """Return how a port's link is."""
    base = _port(device, port, sys_root)
    return Link(_read(base / "state").rpartition(": ")[2], _read(base / "link_layer"))


def gid_table(device: str, port: int, sys_root: Path = SYS_ROOT) -> list[Gid]:
    """Return the port's GIDs as the kernel shows them, without the empty ones."""
    base = _port(device, port, sys_root)
    table: list[Gid] = []
    for index, text in _gids(base / "gids"):
        address = ipaddress.IPv6Address(text)
        kind = _read(base / "gid_attrs/types" / str(index))
        interface = _read(base / "gid_attrs/ndevs" / str(index))
        mapped = address.ipv4_mapped
        shown = str(address) if mapped is None else f"::ffff:{mapped}"
        table.append(Gid(index, shown, kind, interface))
    return table


def _gids(folder: Path) -> list[tuple[int, str]]:
    """Return index and text of each entry in use. Devices have up to a thousand, and each connection looks at them."""
    found: list[tuple[int, str]] = []
    for name in _names(folder):
        try:
            descriptor = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            text = os.read(descriptor, 64)
        except OSError:  # InfiniBand's say so of an entry that is not in use
            continue
        finally:
            os.close(descriptor)
        if text.strip(b"0:\n"):
            found.append((int(name), text.decode().strip()))
    return sorted(found)


def best_gid(table: Sequence[Gid]) -> Gid | None:
    """Return the GID that a connection uses unless it is told otherwise; None if there is none."""
    return min(table, key=lambda gid: (gid.rank, gid.index), default=None)


def netdev_of(device: str, port: int, sys_root: Path = SYS_ROOT) -> str:
    """Return the network interface below a port, ``""`` if it has none or the kernel does not say."""
    base = sys_root / "class/infiniband" / device
    shown = [gid.interface for gid in gid_table(device, port, sys_root)]
    found = [*shown, _read(base / "parent"), *_names(base / "device/net")]  # ``parent``: software devices
    return next((name for name in found if name), "")


# What is amiss --------------------------------------------------------------------------------------------------


def why_inactive(device: str, port: int, sys_root: Path = SYS_ROOT) -> str:
    """Say what brings up a port that is not active."""
    link = link_of(device, port, sys_root)
    cause = f"port {port} of RDMA device {device} is not active (it is {link.state or 'gone'})"
    if link.layer == "InfiniBand":
        return f"{cause}: its fabric has no subnet manager, or the cable is out; run: ibstat {device} {port}"
    return f"{cause}: its link is down; run: ip link set {netdev_of(device, port, sys_root) or 'NETDEV'} up"


def why_no_gid(device: str, port: int, sys_root: Path = SYS_ROOT) -> str:
    """Say what gives a GID to a port without one."""
    netdev = netdev_of(device, port, sys_root) or "NETDEV"
    return (
        f"RDMA device {device} has no GID on port {port}: its network interface has no address; "
        f"run: ip addr add ADDRESS/24 dev {netdev}"
    )


def why_no_device(sys_root: Path = SYS_ROOT, modules_root: Path = MODULES_ROOT) -> str:
    """Say why libibverbs finds no device, and what gives it one."""
    names = device_names(sys_root)
    if names and not _names(DEVICE_FILES):
        return (
            f"this process sees no file of RDMA device {names[0]} in {DEVICE_FILES}; run: modprobe ib_uverbs, "
            f"or a container with --device {DEVICE_FILES}"
        )
    if names:
        return (
            f"libibverbs has no provider for RDMA device {names[0]}; "
            "run: apt-get install -y ibverbs-providers, or what your distribution has"
        )
    command = _software_device(sys_root, modules_root)
    if command:
        return f"there is no RDMA device here; load the NIC's driver, or make a software one; run: {command}"
    return "there is no RDMA device here; load the NIC's driver (this kernel has no rdma_rxe), or use another transport"


def _software_device(sys_root: Path, modules_root: Path) -> str:
    """Return what makes a soft-RoCE device, ``""`` where the kernel has none or there is no interface for it."""
    modules = modules_root / platform.release()
    lists = [modules / name for name in ("modules.dep", "modules.builtin")]
    if not any("rdma_rxe.ko" in _read(path) for path in lists):
        return ""
    wired = [name for name in _names(sys_root / "class/net") if name != "lo"]
    return f"modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {wired[0]}" if wired else ""


def _port(device: str, port: int, sys_root: Path) -> Path:
    return sys_root / "class/infiniband" / device / "ports" / str(port)


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an unused entry of the table has no attributes
        return ""
