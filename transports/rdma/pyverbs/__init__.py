"""The pyverbs binding: the Python library that rdma-core ships, used as its users know it.

Distributions build it for their own Python and libibverbs; the packages on PyPI do not import beside either.
``docs/rdma.md`` says how it comes into a virtual environment.
"""

from __future__ import annotations

from typing import cast

from farpool.protocol.errors import TransportUnavailable
from farpool.transports.rdma.binding import Connected, OpenPair, VerbsDevice, VerbsDomain
from farpool.transports.rdma.pyverbs import library
from farpool.transports.rdma.pyverbs.handles import PyverbsError, cause_of
from farpool.transports.rdma.pyverbs.lanes import PyverbsLanes
from farpool.transports.rdma.pyverbs.objects import Device, Domain, Pair

__all__ = [
    "ATOMIC",
    "LOCAL",
    "READ",
    "WRITE",
    "device_names",
    "domain",
    "lanes",
    "open_device",
    "pair",
    "prepare_for_fork",
]

LOCAL: int = library.enums.IBV_ACCESS_LOCAL_WRITE
READ: int = library.enums.IBV_ACCESS_REMOTE_READ
WRITE: int = library.enums.IBV_ACCESS_REMOTE_WRITE
ATOMIC: int = library.enums.IBV_ACCESS_REMOTE_ATOMIC


def prepare_for_fork() -> None:
    """Let this process fork although memory is registered. Once, before any device is opened."""
    if library.fork.is_fork_initialized() == library.enums.IBV_FORK_UNNEEDED:
        return  # the kernel copies registered pages when a process forks
    try:
        library.fork.fork_init()
    except PyverbsError as error:
        raise TransportUnavailable(f"libibverbs cannot prepare for a fork: {cause_of(error)}") from error


def device_names() -> list[str]:
    """Return the names of the RDMA devices that libibverbs finds."""
    try:
        return [device.name.decode() for device in library.device.get_device_list()]
    except PyverbsError:  # the kernel has no RDMA at all
        return []


def open_device(name: str, port: int) -> Device:
    """Open a device and one of its ports."""
    return Device(name, port)


def domain(device: VerbsDevice) -> Domain:
    """Make a protection domain."""
    return Domain(cast("Device", device))


def pair(domain: VerbsDomain, *, depth: int, max_inline: int) -> Pair:
    """Make a queue pair."""
    return Pair(cast("Domain", domain), depth=depth, max_inline=max_inline)


def lanes(
    domain: VerbsDomain, connect: OpenPair, connected: Connected, *, max_message: int, depth: int, spin: float
) -> PyverbsLanes:
    """Return a session's lanes."""
    return PyverbsLanes(
        cast("Domain", domain), connect, connected, access=LOCAL, max_message=max_message, depth=depth, spin=spin
    )
