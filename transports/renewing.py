"""How an awaitable region attaches again after its data plane was lost: what every such transport shares."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

from farpool.native.remote_region import RemoteRegion
from farpool.protocol.errors import DeadlineExceeded
from farpool.transports.threads import in_thread, keep

__all__ = ["renew"]

REST_SECONDS = 0.01
"""Rest before the third attempt, and as much more before each later one."""


async def renew(region: RemoteRegion, deadline: float, attempt: int, threads: ThreadPoolExecutor) -> None:
    """Attach again through the control plane, in one of *threads*: the control plane is synchronous."""
    if attempt > 2:
        await asyncio.sleep(max(0.0, min(deadline - time.monotonic(), attempt * REST_SECONDS)))
    await in_thread(threads, deadline, keep, _refresh, region, deadline, late=_late)


def _refresh(region: RemoteRegion, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _late()
    region.refresh(left)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("the server could not be reached again within the deadline; raise timeout=")
