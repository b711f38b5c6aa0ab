"""Choose the device, port, GID and MTU of an RDMA connection, and say why.

Verbs leave this choice to the program, and a wrong one fails late, with a time-out. The order here: RoCE v2 with an
IPv4 address first (it is routed, and firewalls know it), then RoCE v2 with a global IPv6 address, then the rest.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.transports.rdma.binding import Binding, VerbsDevice

__all__ = ["MTU_BYTES", "Gid", "Port", "gid_table", "open_port"]

SYSFS: Final = Path("/sys/class/infiniband")
MTU_BYTES: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""ibv_mtu of <infiniband/verbs.h> in bytes."""


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


@dataclass(frozen=True, slots=True)
class Port:
    """An open device with the port, GID and MTU that its connections use."""

    device: VerbsDevice
    gid: Gid
    gid_bytes: bytes
    mtu: int
    """As an ``ibv_mtu``."""
    lid: int
    max_message: int
    """Bytes of one work request."""
    reads_in: int
    reads_out: int
    atomics: bool

    def describe(self) -> str:
        """Return the choice in a few words."""
        kind = self.gid.kind or "InfiniBand"
        return (
            f"{self.device.name} port {self.device.port}, GID {self.gid.index} ({kind} {self.gid.address}), "
            f"MTU {MTU_BYTES.get(self.mtu, 0)}"
        )


def gid_table(device: str, port: int) -> list[Gid]:
    """Return the port's GIDs as the kernel shows them, without the empty ones."""
    base = SYSFS / device / "ports" / str(port)
    table: list[Gid] = []
    for entry in sorted((base / "gids").glob("*"), key=lambda path: int(path.name)):
        address = _read(entry)
        if address and ipaddress.IPv6Address(address) != ipaddress.IPv6Address(0):
            kind = _read(base / "gid_attrs" / "types" / entry.name)
            interface = _read(base / "gid_attrs" / "ndevs" / entry.name)
            table.append(Gid(int(entry.name), str(ipaddress.IPv6Address(address)), kind, interface))
    return table


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # an unused entry of the table has no attributes
        return ""


def open_port(binding: Binding, settings: Mapping[str, object]) -> Port:
    """Open the device that *settings* name (``device``, ``port``, ``gid_index``, ``mtu``), or the first that works.

    Raises:
        TransportUnavailable: there is no device, no active port, or no usable GID; the message says how to get one.
        InvalidArgument: a setting that no device could have.
    """
    number = _integer(settings, "port", 1, 255) or 1
    wanted = settings.get("device")
    names = binding.device_names()
    if not names:
        raise TransportUnavailable(
            "there is no RDMA device here; load the NIC's driver, or make a software one: "
            "rdma link add rxe0 type rxe netdev eth0"
        )
    if wanted is not None and wanted not in names:
        raise TransportUnavailable(f"there is no RDMA device {wanted}; this machine has {', '.join(names)}")
    failures: list[str] = []
    for name in [str(wanted)] if wanted is not None else names:
        device = binding.open_device(name, number)
        try:
            return _examine(device, settings)
        except TransportUnavailable as error:
            device.close()
            failures.append(error.message)
        except BaseException:
            device.close()
            raise
    raise TransportUnavailable("; ".join(failures))


def _examine(device: VerbsDevice, settings: Mapping[str, object]) -> Port:
    state, limits = device.port_state(), device.limits()
    if not state["active"]:
        raise TransportUnavailable(
            f"port {device.port} of RDMA device {device.name} is not active; bring its link up: "
            "rdma link shows its netdev, then ip link set NETDEV up"
        )
    gid = _choose_gid(device, _integer(settings, "gid_index", 0, 255))
    return Port(
        device=device,
        gid=gid,
        gid_bytes=device.gid(gid.index),
        mtu=_choose_mtu(device, state["mtu"], _integer(settings, "mtu", 256, 4096)),
        lid=state["lid"],
        max_message=min(state["max_message"], 1 << 30),
        reads_in=max(1, min(limits["max_reads_in"], 16)),
        reads_out=max(1, min(limits["max_reads_out"], 16)),
        atomics=bool(limits["atomics"]),
    )


def _choose_gid(device: VerbsDevice, wanted: int | None) -> Gid:
    table = gid_table(device.name, device.port)
    if wanted is None:
        if not table:
            raise TransportUnavailable(
                f"RDMA device {device.name} has no GID on port {device.port}; give its netdev an address: "
                "ip addr add ADDRESS/24 dev NETDEV"
            )
        return min(table, key=lambda gid: (gid.rank, gid.index))
    for gid in table:
        if gid.index == wanted:
            return gid
    indices = ", ".join(f"{gid.index} ({gid.kind} {gid.address})" for gid in table) or "none"
    raise TransportUnavailable(f"RDMA device {device.name} has no GID {wanted} on port {device.port}; it has {indices}")


def _choose_mtu(device: VerbsDevice, active: int, wanted: int | None) -> int:
    if wanted is None:
        return active
    for number, nbytes in MTU_BYTES.items():
        if nbytes == wanted and number <= active:
            return number
    most = MTU_BYTES.get(active, 0)
    sizes = ", ".join(str(nbytes) for nbytes in MTU_BYTES.values() if nbytes <= most)
    raise TransportUnavailable(f"RDMA device {device.name} cannot use an MTU of {wanted} bytes; choose {sizes}")


def _integer(settings: Mapping[str, object], name: str, least: int, most: int) -> int | None:
    value = settings.get(name)
    if value is None:
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if not least <= number <= most:
        raise InvalidArgument(f"rdma's {name} is a number from {least} to {most}, not {value!r}")
    return number
