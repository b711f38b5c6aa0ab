"""What ``farpool doctor`` says of memory devices: what each is, what it holds, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from farpool.cli.findings import Finding, Subject, finding_of
from farpool.protocol.errors import ProtocolError, TransportUnavailable
from farpool.protocol.units import format_bytes
from farpool.transports.cxl.devices import Device, dax_names, holder_of_lock, open_device, problem_of
from farpool.transports.cxl.superblock import PAGE_BYTES, read_superblock

__all__ = ["dax_devices", "describe_contents"]

CHECK = "cxl devices"


def dax_devices(subject: Subject) -> Iterator[Finding]:
    """Look at each DAX device."""
    names = dax_names(subject.sys_root)
    for name in names:
        yield _dax_device(name, subject)
    if not names:
        folder = subject.sys_root / "bus/cxl/devices"
        memories = sorted(path.name for path in folder.glob("mem*")) if folder.is_dir() else []
        mend = f"cxl create-region -m {' '.join(memories)}" if memories else ""
        message = "no DAX device: the cxl transport works on this host's shared memory alone"
        yield Finding(CHECK, "warn", message, mend)


def _dax_device(name: str, subject: Subject) -> Finding:
    problem = problem_of(name, subject.sys_root)
    if problem is None:
        try:
            device = open_device(f"/dev/{name}", writable=True, sys_root=subject.sys_root)
        except TransportUnavailable as error:
            problem = error.message
        else:
            return describe_contents(name, device)
    return finding_of(CHECK, problem)


def _state_dir() -> str:
    """Return where a server of this user keeps what it knows of devices."""
    from farpool.server.settings import load_settings  # noqa: PLC0415  no client command loads the server for nothing

    return load_settings().state_dir


def describe_contents(name: str, device: Device) -> Finding:
    """Say what an open device holds, and close it."""
    size = f"{name}: {format_bytes(device.nbytes)}, aligned to {format_bytes(device.align)}"
    try:
        if device.nbytes < 2 * device.align:
            mend = f"daxctl reconfigure-device --size={2 * device.align} {name}"
            return Finding(CHECK, "warn", f"{size}: too small for an arena", mend)
        with device.map(0, PAGE_BYTES, writable=False) as header:
            found = read_superblock(header, incoherent=True)
        holder = holder_of_lock(device.fd)
    except (ProtocolError, TransportUnavailable) as error:
        return Finding(CHECK, "warn", f"{size}: {error.message}", f"farpool format --yes {device.path}")
    finally:
        device.close()
    number = found.arena.hex() if found is not None and found.claimed else ""
    holds = f"{size}, carries the arena {number}" if number else f"{size}, blank"
    if holder:
        return Finding(CHECK, "ok", f"{holds}, served by pid {holder}")
    folder = _state_dir()
    if not number or Path(folder, number).is_dir():
        return Finding(CHECK, "ok", holds)
    whose = f"{holds}, of which {folder} knows nothing: another host's server has it, or another --state-dir"
    return Finding(CHECK, "warn", whose, f"farpool format {device.path}")
