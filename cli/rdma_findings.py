"""What ``farpool doctor`` says of RDMA: ports with their GIDs and the one that is chosen, library, locked memory."""

from __future__ import annotations

from collections.abc import Iterator

from farpool.cli.findings import Finding, Level, Row, Subject, finding_of
from farpool.protocol.errors import TransportUnavailable
from farpool.protocol.units import format_bytes
from farpool.transports.rdma import binding as bindings
from farpool.transports.rdma.locked_memory import ENOUGH_BYTES, how_to_raise, locked_limit
from farpool.transports.rdma.ports import MTU_BYTES
from farpool.transports.rdma.sysfs import (
    best_gid,
    device_names,
    gid_table,
    link_of,
    port_numbers,
    why_inactive,
    why_no_device,
    why_no_gid,
)

__all__ = ["devices", "library", "locked_memory"]


def devices(subject: Subject) -> Iterator[Finding]:
    """Look at each port of each device, and at the GID that a connection would use."""
    names = device_names(subject.sys_root)
    for name in names:
        for port in port_numbers(name, subject.sys_root):
            yield _port(name, port, subject)
    if not names:
        yield finding_of("rdma devices", why_no_device(subject.sys_root, subject.modules_root))


def _port(name: str, port: int, subject: Subject) -> Finding:
    root = subject.sys_root
    link, table = link_of(name, port, root), gid_table(name, port, root)
    best = best_gid(table)
    facts = [link.state or "no state", link.layer or "unknown link layer", _active_mtu(name, port)]
    message = f"{name} port {port}: {', '.join(facts)}"
    level: Level = "ok"
    mend = ""
    if not link.active or best is None:
        problem = finding_of(
            "rdma devices", why_no_gid(name, port, root) if link.active else why_inactive(name, port, root)
        )
        level, message, mend = "warn", f"{message}; {problem.message}", problem.mend
    rows: tuple[Row, ...] = tuple(
        {
            "gid": gid.index,
            "type": gid.kind or "InfiniBand",
            "address": gid.address,
            "netdev": gid.interface,
            "chosen": gid is best and link.active,
        }
        for gid in table
    )
    return Finding("rdma devices", level, message, mend, rows)


def _active_mtu(name: str, port: int) -> str:
    """Return the MTU that the device itself tells, sysfs does not; why not if it cannot be asked."""
    try:
        binding = bindings.load()
    except TransportUnavailable:  # what the check of the library is for
        return "MTU unknown"
    try:
        device = binding.open_device(name, port)
    except TransportUnavailable as error:
        return f"MTU unknown ({error.message})"
    try:
        return f"MTU {MTU_BYTES.get(device.port_state()['mtu'], 0)}"
    except TransportUnavailable as error:
        return f"MTU unknown ({error.message})"
    finally:
        device.close()


def library(subject: Subject) -> Iterator[Finding]:
    """Load the binding to libibverbs that is used by default."""
    try:
        bindings.load()
    except TransportUnavailable as error:
        found = finding_of("rdma library", error.message)
        needed = bool(device_names(subject.sys_root))
        yield found if needed else Finding(found.check, "ok", f"{found.message}; no device here needs it")
    else:
        yield Finding("rdma library", "ok", f"the {bindings.DEFAULT_BINDING} verbs binding and libibverbs load")


def locked_memory(subject: Subject) -> Iterator[Finding]:
    """Look at how much memory may be registered."""
    limit = locked_limit(subject.proc_root)
    if limit is None:
        yield Finding("locked memory", "ok", "unlimited for this user")
    elif limit >= ENOUGH_BYTES:
        yield Finding("locked memory", "ok", f"limit {format_bytes(limit)}")
    elif not device_names(subject.sys_root):
        yield Finding("locked memory", "ok", f"limit {format_bytes(limit)}, and no RDMA device needs more")
    else:
        message = (
            f"limit {format_bytes(limit)}: too little to register slabs for rdma; the others need none; for a service "
            "set LimitMEMLOCK=infinity, for good see /etc/security/limits.conf"
        )
        yield Finding("locked memory", "warn", message, how_to_raise())
