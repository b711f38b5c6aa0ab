"""Whether something is emulated, device or processor: such figures say nothing about hardware."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from farpool.perf.rdma_port import find_port

__all__ = ["is_emulated"]

ROOT: Final = Path("/")
EMULATED_PROCESSOR: Final = "QEMU TCG"
"""What QEMU calls a processor that it emulates, and does not merely share."""
QEMU_VENDOR: Final = "0x1af4"
"""What QEMU gives as the subsystem vendor of its devices, the host bridge first."""


def is_emulated(transport: str, arena: str, root: Path = ROOT) -> bool:
    """Tell whether something stands in for hardware; *arena* is the server's, as ``stat`` names it.

    For each transport that is an emulated processor. For cxl it is shared memory of this host as well, unless the arena
    is a DAX device of a machine that QEMU has not made; for rdma the kernel's software device.
    """
    if EMULATED_PROCESSOR in _read(root / "proc/cpuinfo"):
        return True
    if transport == "cxl":
        return not _is_device(arena) or _made_by_qemu(root)
    if transport == "rdma":
        port = find_port(root / "sys/class/infiniband")
        return port is not None and port.emulated
    return False


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(Path(path).stat().st_mode)
    except OSError:  # another host's, or not ours to see
        return path.startswith("/dev/dax")


def _made_by_qemu(root: Path) -> bool:
    # Not the processor's flag for a hypervisor: guests with CXL memory have to hide it.
    return _read(root / "sys/bus/pci/devices/0000:00:00.0/subsystem_vendor").strip() == QEMU_VENDOR


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
