"""Sessions that nobody calls reach their server again; what their keeper holds goes with the last of them."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable

import pytest
from tests.conftest import links_of
from tests.unit.client.scripted_server import WITHIN, ScriptedServer

from farpool.client.pool import Pool
from farpool.native.control_channel import ControlChannel
from farpool.protocol.errors import ServerLost
from farpool.protocol.messages import Allocate, Hello


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not true():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


def keepers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("farpool-keep", "farpool-rec"))]


def waited_for() -> list[str]:
    """Return the descriptors that a keeper has."""
    links = [link.partition(" ")[2] for link in links_of("self")]
    return sorted(link for link in links if "eventpoll" in link or "eventfd" in link)


def test_a_connection_that_the_server_ends_is_made_anew(server: ScriptedServer, pool: Pool) -> None:
    session = pool.session_id
    for count in range(2, 6):
        server.peers[-1].cut()
        assert len(server.seen(Hello, count)) == count
    assert server.seen(Hello, 5)[-1].resume is not None
    assert pool.session_id == session


def test_also_with_words_of_the_server_that_nobody_has_read(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(4096)
    server.peers[-1].event("replaced", server.slabs[slab.id])
    server.peers[-1].cut()
    assert len(server.seen(Hello, 2)) == 2


def test_also_one_whose_end_a_caller_has_seen_first(server: ScriptedServer, pool: Pool) -> None:
    """It has closed the descriptor, and asks nothing more: an allocation is not sent twice."""
    for count in range(1, 50):
        server.cut_once(Allocate)
        with pytest.raises(ServerLost):
            pool.allocate(4096)
        assert len(server.seen(Hello, count + 1)) == count + 1


def test_a_server_that_stays_away_for_a_while(server: ScriptedServer, pool: Pool) -> None:
    server.stop()
    time.sleep(0.3)
    server.start()
    assert len(server.seen(Hello, 2)) == 2
    assert pool.stat().server == "scripted"


def test_nothing_is_left_of_it_after_the_last_pool(make_pool: Callable[[], Pool]) -> None:
    before = waited_for()
    for _ in range(20):
        with make_pool(), make_pool():
            assert "farpool-keeper" in keepers()
    until(lambda: not keepers(), "the keeper ends")
    assert waited_for() == before


def test_the_collector_may_close_pools_in_its_thread(server: ScriptedServer, make_pool: Callable[[], Pool]) -> None:
    """Pools in cycles are closed by whoever the collector interrupts."""
    for _ in range(50):
        garbage = make_pool()
        garbage.itself = garbage  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        with warnings.catch_warnings(), make_pool():
            warnings.simplefilter("ignore", ResourceWarning)
            server.peers[-1].cut()
            del garbage
            gc.collect()
    until(lambda: not keepers(), "the keeper ends")


def test_two_who_close_a_channel_close_its_descriptor_once() -> None:
    for _ in range(300):
        ours, theirs = socket.socketpair()
        channel = ControlChannel(ours.detach(), 1 << 20)
        channel.start_heartbeat(b"beat", 1.0)
        opened: list[int] = []

        def close(channel: ControlChannel = channel, opened: list[int] = opened) -> None:
            channel.close()
            opened.append(os.open(os.devnull, os.O_RDONLY))  # takes the number that has just come free

        threads = [threading.Thread(target=close) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for descriptor in opened:
            os.close(descriptor)
        theirs.close()
