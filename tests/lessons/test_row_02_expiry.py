"""Lessons row 2: a half-written entry became readable once its write lease had expired.

Here nothing but a commit publishes: what expires, of a lease or of a session, takes its drafts with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.lessons.conftest import TRANSPORTS, until

import farpool

if TYPE_CHECKING:
    from tests.lessons.conftest import StartWriter, Writer

    from farpool.server.embedded import EmbeddedServer

NBYTES = 256 << 10
OLD = b"\x11" * NBYTES


@pytest.fixture(scope="module")
def strict_server() -> Iterator[EmbeddedServer]:
    """A server that gives up on a silent client after a second."""
    with farpool.serve_embedded(capacity="64MiB", transports=TRANSPORTS, session_timeout=1.0) as served:
        yield served


@pytest.fixture
def watcher(strict_server: EmbeddedServer, transport: str) -> Iterator[farpool.Pool]:
    """A session that outlives the others."""
    with farpool.connect(strict_server.url, transport=transport) as connected:
        yield connected


def stop_past_its_session(writer: Writer, pool: farpool.Pool) -> None:
    sessions = pool.stat().sessions
    writer.suspend()
    until(lambda: pool.stat().sessions == sessions - 1, "the stopped writer's session has ended")


def test_a_session_that_expires_publishes_nothing(
    strict_server: EmbeddedServer, watcher: farpool.Pool, start_writer: StartWriter
) -> None:
    with watcher.allocate(NBYTES, name="row 2") as slab:
        with slab.reserve() as draft:
            draft.write(OLD)
            draft.commit()
        writer = start_writer(strict_server, "row 2")
        stop_past_its_session(writer, watcher)
        assert slab.read(NBYTES) == OLD
        assert watcher.open("row 2", mode="r").read(NBYTES) == OLD
        writer.resume()
        writer.go_on("StaleSlab")
        assert slab.read(NBYTES) == OLD
        assert slab.info.commits == 1
        slab.free()


def test_the_half_written_slab_of_a_session_that_expires_is_a_miss(
    strict_server: EmbeddedServer, watcher: farpool.Pool, start_writer: StartWriter
) -> None:
    writer = start_writer(strict_server, "row 2 first")
    stop_past_its_session(writer, watcher)
    with pytest.raises(farpool.SlabNotFound):
        watcher.open("row 2 first")
    writer.resume()
    writer.go_on("StaleSlab")
    with pytest.raises(farpool.SlabNotFound):
        watcher.open("row 2 first")


def test_a_lease_that_expires_publishes_nothing(
    strict_server: EmbeddedServer, watcher: farpool.Pool, start_writer: StartWriter
) -> None:
    """Its client is stopped, so that nobody renews it."""
    writer = start_writer(strict_server, "row 2 leased", "2")
    seen = watcher.open("row 2 leased", mode="r")
    writer.suspend()

    def ended() -> bool:
        try:
            assert seen.read(NBYTES) == bytes(NBYTES), "half of a version was published"
        except farpool.StaleSlab:
            return True
        return False

    until(ended, "the lease has ended")
    with pytest.raises(farpool.SlabNotFound):
        watcher.open("row 2 leased")
    writer.resume()
    writer.go_on("StaleSlab")
    with pytest.raises(farpool.SlabNotFound):
        watcher.open("row 2 leased")
