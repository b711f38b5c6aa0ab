"""Set this guest's clock of the day, while a server and its clients live: ``python clocks.py SECONDS``.

Sessions, deadlines and leases must not notice. The end of a grant is kept by that clock over a restart of the server,
but not before. Prints a line for each thing that was seen to hold.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import farpool
import farpool.aio
from farpool.client.administration import Administration
from farpool.server.embedded import EmbeddedServer

AMPLE = 60.0
"""Seconds for what must succeed."""
TIMEOUT = 4.0
"""Seconds that the clock is set in, and that no call may notice."""
LATE = 4.0
"""Seconds that an emulated machine may be late."""
LEASE = 8.0
GRANT = 600.0


def took(call: Callable[[], object]) -> float:
    """Return how long a call lasted whose deadline must pass."""
    begun = time.monotonic()
    try:
        call()
    except farpool.DeadlineExceeded:
        return time.monotonic() - begun
    raise AssertionError("the call has not met its deadline")


@contextmanager
def suspended(server: EmbeddedServer) -> Generator[None]:
    """Stop the server's process for a while."""
    server.suspend()
    try:
        yield
    finally:
        server.resume()


def wait_awaited(url: str) -> None:
    """Wait for a word by the awaitable API, whose loop has a clock of its own."""

    async def wait() -> None:
        async with farpool.aio.connect(url, transport="tcp", timeout=AMPLE) as pool:
            slab = await pool.allocate(8)
            begun.append(time.monotonic())
            await slab.wait(0, 0, timeout=TIMEOUT)

    begun: list[float] = []
    try:
        asyncio.run(wait())
    except farpool.DeadlineExceeded:
        lasted = time.monotonic() - begun[0]
        assert TIMEOUT - 0.5 < lasted < TIMEOUT + LATE, lasted
        return
    raise AssertionError("the call has not met its deadline")


def check_deadlines(
    server: EmbeddedServer, near: farpool.Slab, far: farpool.Slab, pool: farpool.Pool, jump: float
) -> None:
    """Set the clock while calls wait, also for a server that does not answer."""
    with ThreadPoolExecutor(4) as threads:
        awaited = threads.submit(wait_awaited, server.url)
        time.sleep(1.0)  # it connects meanwhile
        with suspended(server):
            waiting = [
                threads.submit(took, lambda: near.wait(8, 0, timeout=TIMEOUT)),
                threads.submit(took, lambda: far.read(8, timeout=TIMEOUT)),
                threads.submit(took, lambda: pool.stat(timeout=TIMEOUT)),
            ]
            time.sleep(1.0)
            before = time.time()
            time.clock_settime(time.CLOCK_REALTIME, before + jump)
            assert abs(time.time() - before - jump) < 60
            lasted = [wait.result() for wait in waiting]
        awaited.result()
    assert all(TIMEOUT - 0.1 < each < TIMEOUT * 1.1 + LATE for each in lasted), lasted
    print("deadlines hold")


def check_lease(pool: farpool.Pool, begun: float) -> None:
    """See the leased slab end when its lease does."""
    while any(slab.name == "leased" and slab.state == "live" for slab in pool.slabs()):
        assert time.monotonic() < begun + LEASE + LATE + TIMEOUT, "the lease does not end"
        time.sleep(0.2)
    assert time.monotonic() > begun + LEASE - 0.5, "the lease ended early"
    print("leases hold")


def check_grant(server: EmbeddedServer, granted: farpool.Slab, jump: float) -> None:
    """See a grant stay as long as the server does, and then end by the clock."""
    left = granted.grants()[0].expires_in
    assert left is not None
    assert GRANT - 60 < left <= GRANT, left
    server.kill()
    server.start()
    over = granted.grants()
    if jump > 0:
        assert not over, over
    else:
        left = over[0].expires_in
        assert left is not None
        assert abs(left - GRANT + jump) < 60, left
    print("a grant follows the clock")


def main(jump: float) -> None:
    """Serve, connect, set the clock, and look."""
    with farpool.serve_embedded(capacity="64MiB", resume_grace=AMPLE) as server:
        with Administration(server.url, AMPLE) as administration:
            administration.add_tenant("reader", None)
        with (
            farpool.connect(server.url, transport="cxl", timeout=AMPLE) as here,
            farpool.connect(server.tcp_url, transport="tcp", timeout=AMPLE) as there,
        ):
            near, far = here.allocate(4096), there.allocate(4096)
            near.write(b"near")
            far.write(b"far")
            near.grant("reader", expires=GRANT)
            sessions = here.session_id, there.session_id
            with farpool.connect(server.url, transport="tcp", timeout=AMPLE) as owner:
                owner.allocate(8, name="leased", lease=LEASE)
                begun = time.monotonic()
            check_deadlines(server, near, far, there, jump)
            check_lease(here, begun)
            check_grant(server, near, jump)
            assert near.read(4) == b"near"
            assert far.read(3) == b"far"
            assert (here.session_id, there.session_id) == sessions
            print("sessions stay")


if __name__ == "__main__":
    main(float(sys.argv[1]))
