"""What a server that stops in order leaves to the next: who was here, and no way past it to memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from farpool.protocol.errors import AuthenticationFailed
from farpool.protocol.messages import Allocate, Attached, Goodbye, Open, ResumeKey, ServerStat, Stat
from farpool.server.embedded import EmbeddedServer, serve_embedded

if TYPE_CHECKING:
    from tests.unit.server.conftest import RawClient

Connect = Callable[..., "RawClient"]

RESUME_GRACE = 2.0


@pytest.fixture
def stopping() -> Iterator[EmbeddedServer]:
    """A server of the test's own, which remembers for a short time only."""
    with serve_embedded(capacity="1MiB", transports=["cxl", "tcp"], resume_grace=RESUME_GRACE) as running:
        yield running


def was_stopped(connect: Connect, server: EmbeddedServer, key: ResumeKey) -> bool:
    with pytest.raises(AuthenticationFailed) as refused:
        connect(server.url, resume=key)
    return bool(refused.value.details.get("stopped"))


def test_who_was_here_is_told_that_it_was_the_server(connect: Connect, stopping: EmbeddedServer) -> None:
    client, gone = connect(stopping.url), connect(stopping.url)
    gone.send(Goodbye())
    gone.wait_for_end()
    stopping.restart()
    assert was_stopped(connect, stopping, client.key)
    assert was_stopped(connect, stopping, client.key), "once more, should the answer have been lost"
    assert not was_stopped(connect, stopping, gone.key)
    assert not was_stopped(connect, stopping, ResumeKey(session=client.key.session, secret=bytes(32)))
    stopping.restart()
    assert not was_stopped(connect, stopping, client.key), "it has not come while the one after it ran"


def test_who_comes_too_late_is_not(connect: Connect, stopping: EmbeddedServer) -> None:
    client = connect(stopping.url)
    stopping.restart()
    deadline = time.monotonic() + 10 * RESUME_GRACE
    while was_stopped(connect, stopping, client.key):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_after_a_crash_nobody_is(connect: Connect, stopping: EmbeddedServer) -> None:
    client, kept = connect(stopping.url), connect(stopping.url)
    stopping.restart()
    kept = connect(stopping.url)
    stopping.kill()
    stopping.start()
    assert not was_stopped(connect, stopping, client.key)
    assert connect(stopping.url, resume=kept.key).welcome is not None


def test_memory_that_was_mapped_has_another_generation(connect: Connect, stopping: EmbeddedServer) -> None:
    """The slab is what it was; a client that has the old memory mapped finds its word changed."""
    client = connect(stopping.url)
    mapped = client.ask(Allocate(nbytes=10, name="mapped", lease="persistent", transport="cxl"), Attached).slab
    client.ask(Allocate(nbytes=10, name="served", lease="persistent", transport="tcp"), Attached)
    for number in range(2):
        stopping.restart()
        client = connect(stopping.url)
        now = client.ask(Open(name="mapped", transport="cxl"), Attached).slab
        assert (now.id, now.generation) == (mapped.id, mapped.generation)
        assert now.memory_generation > mapped.memory_generation
        served = client.ask(Open(name="served"), Attached).slab
        assert served.memory_generation == served.generation
        mapped = now
        assert client.ask(Stat(), ServerStat).slabs == 2, f"after restart {number}"
