"""Find the transports that are installed: entry points of the group ``farpool.transports``."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from farpool.protocol.errors import InvalidArgument, TransportUnavailable
from farpool.transports.contract import Transport

__all__ = ["GROUP", "find_transport", "transport_names"]

GROUP = "farpool.transports"


@cache
def transport_names() -> tuple[str, ...]:
    """Return the names of the installed transports, in the order of their names."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


@cache
def find_transport(name: str) -> Transport:
    """Import and return the transport called *name*.

    Raises:
        InvalidArgument: no installed package offers it.
        TransportUnavailable: its package is installed and cannot be imported, or offers something else.
    """
    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not entries:
        raise InvalidArgument(
            f'there is no transport "{name}"; installed are {", ".join(transport_names()) or "none"} (or "auto")'
        )
    try:
        transport = entries[0].load()
    except Exception as error:  # a third party's import may fail in any way
        raise TransportUnavailable(f'transport "{name}" ({entries[0].value}) cannot be imported: {error}') from error
    if not isinstance(transport, Transport) or transport.name != name:
        raise TransportUnavailable(f'the entry point {entries[0].value} of transport "{name}" is no farpool Transport')
    return transport
