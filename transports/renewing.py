"""How an awaitable region attaches again after its data plane was lost: what every such transport shares."""

from __future__ import annotations

import asyncio
import time

from farpool.native.remote_region import RemoteRegion
from farpool.protocol.errors import DeadlineExceeded

__all__ = ["renew"]

REST_SECONDS = 0.01
"""Rest before the third attempt, and as much more before each later one."""


async def renew(region: RemoteRegion, deadline: float, attempt: int) -> None:
    """Attach again through the control plane, in a thread: the control plane is synchronous."""
    if attempt > 2:
        await asyncio.sleep(max(0.0, min(deadline - time.monotonic(), attempt * REST_SECONDS)))
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("the server could not be reached again within the deadline; raise timeout=")
    await asyncio.to_thread(region.refresh, left)
