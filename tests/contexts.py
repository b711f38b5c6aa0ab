"""What a transport's server half is started with, where a test stands for the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from farpool.transports.contract import ServerContext

__all__ = ["server_context"]

Report = Callable[[str, Mapping[str, Any]], None]


def server_context(
    settings: Mapping[str, Any], report: Report = lambda event, fields: None, **more: Any
) -> ServerContext:
    """Return the context of a server on the running loop that has no arena and no sessions."""
    return ServerContext(
        loop=asyncio.get_running_loop(),
        socket_path="",
        generations_path="",
        generations_nbytes=0,
        settings=settings,
        report=report,
        session_of=lambda number: None,
        **more,
    )
