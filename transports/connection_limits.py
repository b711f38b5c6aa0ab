"""How many connections a data plane has at most: in all, and of one session."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from farpool.protocol.errors import InvalidArgument

__all__ = ["ConnectionLimits", "connection_limits"]

MOST: Final = 1 << 20
SERVER_DEFAULT: Final = 4096


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What is refused beyond."""

    server: int
    session: int


def connection_limits(transport: str, settings: Mapping[str, Any], *, session: int, share: float) -> ConnectionLimits:
    """Return what a transport's settings say, within its *share* of this process's file descriptors.

    *session* is the default of one session. Raises ``InvalidArgument``.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = MOST if descriptors == resource.RLIM_INFINITY else max(1, int(descriptors * share))
    return ConnectionLimits(
        server=min(_number(transport, settings, "max_connections", SERVER_DEFAULT), room),
        session=_number(transport, settings, "max_session_connections", session),
    )


def _number(transport: str, settings: Mapping[str, Any], name: str, default: int) -> int:
    value = settings.get(name, default)
    if type(value) is not int or not 1 <= value <= MOST:
        raise InvalidArgument(f"{name} in [transport_settings.{transport}] is a number from 1 to {MOST}, not {value!r}")
    return value
