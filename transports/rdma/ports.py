"""Choose the device, port, GID and MTU of an RDMA connection, and say why.

Verbs leave this choice to the program, and a wrong one fails late, with a time-out. How GIDs rank is in ``sysfs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.transports.rdma.binding import Binding, VerbsDevice
from farpool.transports.rdma.sysfs import (
    SYS_ROOT,
    Gid,
    best_gid,
    gid_table,
    why_inactive,
    why_no_device,
    why_no_gid,
)

__all__ = ["MTU_BYTES", "Port", "open_port"]

MTU_BYTES: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""ibv_mtu of <infiniband/verbs.h> in bytes."""


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
        return f"{self.device.name} port {self.device.port}, GID {self.gid}, MTU {MTU_BYTES.get(self.mtu, 0)}"


def open_port(binding: Binding, settings: Mapping[str, object]) -> Port:
    """Open the device that *settings* name (``device``, ``port``, ``gid_index``, ``mtu``), or the first that works.

    Raises:
        TransportUnavailable: there is no device, no active port, or no usable GID; the message says how to get one.
        InvalidArgument: a setting that no device could have.
    """
    number = _integer(settings, "port", 1, 255) or 1
    _integer(settings, "gid_index", 0, 255)  # a mistake, whatever devices there are
    _integer(settings, "mtu", 256, 4096)
    wanted = settings.get("device")
    names = binding.device_names()
    if not names:
        raise TransportUnavailable(why_no_device())
    if wanted is not None and wanted not in names:
        raise TransportUnavailable(f"there is no RDMA device {wanted}; this machine has {', '.join(names)}")
    failures: list[str] = []
    for name in [str(wanted)] if wanted is not None else names:
        try:
            return _open(binding, name, number, settings)
        except TransportUnavailable as error:
            failures.append(error.message)
    raise TransportUnavailable("; ".join(failures))


def _open(binding: Binding, name: str, number: int, settings: Mapping[str, object]) -> Port:
    device = binding.open_device(name, number)
    try:
        return _examine(device, settings)
    except BaseException:
        device.close()
        raise


def _examine(device: VerbsDevice, settings: Mapping[str, object]) -> Port:
    state, limits = device.port_state(), device.limits()
    if not state["active"]:
        raise TransportUnavailable(why_inactive(device.name, device.port))
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


def _choose_gid(device: VerbsDevice, wanted: int | None, sys_root: Path = SYS_ROOT) -> Gid:
    table = gid_table(device.name, device.port, sys_root)
    best = best_gid(table)
    if best is None:
        raise TransportUnavailable(why_no_gid(device.name, device.port, sys_root))
    if wanted is None:
        return best
    for gid in table:
        if gid.index == wanted:
            return gid
    raise TransportUnavailable(
        f"RDMA device {device.name} has no GID {wanted} on port {device.port}; it has {', '.join(map(str, table))}; "
        f"take gid_index={best.index}, or leave that out for the same"
    )


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
