"""Which RDMA port the limit uses: the first active one, and its first routable GID, as the transport itself chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["RdmaPort", "find_port"]

SYSFS: Final = Path("/sys/class/infiniband")
IPV4_MAPPED: Final = "0000:0000:0000:0000:0000:ffff:"


class RdmaPort(NamedTuple):
    """A port that queue pairs can be connected over."""

    device: str
    port: int
    gid_index: int
    emulated: bool
    """Whether the kernel plays the device (soft-RoCE): such figures say nothing about a card."""


def find_port(root: Path = SYSFS) -> RdmaPort | None:
    """Return the first active port with a RoCE v2 GID of an IPv4 address, or None."""
    for device in sorted(root.glob("*")):
        for port in sorted(device.glob("ports/*")):
            if "ACTIVE" in _read(port / "state"):
                for gid in sorted(port.glob("gids/*"), key=lambda path: int(path.name)):
                    kind = _read(port / "gid_attrs" / "types" / gid.name)
                    if kind == "RoCE v2" and _read(gid).startswith(IPV4_MAPPED):
                        return RdmaPort(device.name, int(port.name), int(gid.name), (device / "parent").exists())
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
