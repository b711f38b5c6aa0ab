"""One session, several callers, connections that come and go: against a server whose answers the test decides."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from tests.unit.client.scripted_server import WITHIN, Peer, ScriptedServer

from farpool.client.pool import Pool, connect
from farpool.client.session import MAX_MAPPED
from farpool.protocol.errors import (
    DeadlineExceeded,
    InvalidArgument,
    PoolFull,
    ProtocolError,
    ServerLost,
    SlabNotFound,
    StaleSlab,
)
from farpool.protocol.framing import MAX_REQUEST_BYTES
from farpool.protocol.messages import (
    Allocate,
    Detach,
    Free,
    Goodbye,
    Heartbeat,
    Hello,
    Listing,
    Open,
    Request,
    Stat,
    encode_error,
    encode_request,
)

ROUNDS = 200

BRIEF = 0.2
"""A timeout that a test lets pass, in seconds."""


# Whose reply it is ----------------------------------------------------------------------------------


def test_replies_out_of_order_reach_their_callers(server: ScriptedServer, pool: Pool) -> None:
    held: list[tuple[Peer, int, Request]] = []

    def hold(peer: Peer, request_id: int, request: Request) -> None:
        held.append((peer, request_id, request))
        if len(held) == 8:
            for each in reversed(held):
                server.answer(*each)

    server.rules[Allocate] = hold
    with ThreadPoolExecutor(8) as threads:
        slabs = list(threads.map(pool.allocate, range(1, 9)))
    assert [slab.nbytes for slab in slabs] == list(range(1, 9))


def test_a_follower_leads_once_the_leader_has_given_up(server: ScriptedServer, pool: Pool) -> None:
    stats, listings = server.hold(Stat), server.hold(Listing)
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(pool.stat, timeout=BRIEF)
        server.seen(Stat)
        follower = threads.submit(pool.slabs)
        server.seen(Listing)
        with pytest.raises(DeadlineExceeded, match="stat"):
            leader.result()
        server.answer(*listings[0])
        assert follower.result() == []
    assert len(stats) == 1


def test_late_reply_goes_to_nobody_else(server: ScriptedServer, pool: Pool) -> None:
    """Lessons row 24, in the synchronous API."""
    held = server.hold(Allocate)
    with pytest.raises(DeadlineExceeded, match="allocate"):
        pool.allocate(4096, timeout=BRIEF)
    del server.rules[Allocate]
    server.answer(*held[0])
    assert pool.allocate(1).nbytes == 1


def test_slab_of_a_late_reply_is_freed(server: ScriptedServer, pool: Pool) -> None:
    held = server.hold(Allocate)
    with pytest.raises(DeadlineExceeded):
        pool.allocate(4096, lease="persistent", timeout=BRIEF)
    server.answer(*held[0])
    pool.stat()
    pool.stat()  # whatever follows takes the Free along
    assert server.seen(Free)[0].id == 1
    assert server.slabs == {}


def test_slab_of_a_late_reply_is_freed_before_goodbye(server: ScriptedServer, pool: Pool) -> None:
    held = server.hold(Allocate)
    with pytest.raises(DeadlineExceeded):
        pool.allocate(4096, lease="persistent", timeout=BRIEF)
    server.answer(*held[0])
    pool.close()
    server.seen(Goodbye)
    assert server.slabs == {}


def test_interrupt_leaves_the_connection_usable(server: ScriptedServer, pool: Pool) -> None:
    held = server.interrupt(Allocate)
    with pytest.raises(KeyboardInterrupt):
        pool.allocate(4096)
    server.answer(*held[0])
    assert pool.slabs() is not None
    pool.stat()
    assert server.slabs == {}, "the slab that nobody got was freed"
    assert len(server.seen(Hello)) == 1, "over the same connection"


def test_interrupt_of_a_follower_leaves_the_leader_alone(server: ScriptedServer, pool: Pool) -> None:
    held = server.hold(Stat)
    server.interrupt(Listing)
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(pool.stat)
        server.seen(Stat)
        with pytest.raises(KeyboardInterrupt):
            pool.slabs()
        server.answer(*held[0])
        assert leader.result().server == "scripted"


def test_interrupt_in_the_middle_of_a_frame(server: ScriptedServer, pool: Pool) -> None:
    def dribble(peer: Peer, request_id: int, _: Request) -> None:
        frame = encode_error(request_id, PoolFull("no room"))
        rest.append((peer, frame[7:]))
        peer.send(frame[:7])
        os.kill(os.getpid(), signal.SIGINT)

    rest: list[tuple[Peer, bytes]] = []
    server.rules[Stat] = dribble
    with pytest.raises(KeyboardInterrupt):
        pool.stat()
    del server.rules[Stat]
    peer, frame = rest[0]
    peer.send(frame)
    assert pool.stat().server == "scripted"
    assert len(server.seen(Hello)) == 1


def wait_for(number: int, numbers: SimpleQueue[int]) -> None:
    while numbers.get(timeout=WITHIN) != number:
        pass


# Python ignores, and tells of, what is raised in the callback of a weak reference: Ctrl-C as well.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment(pool: Pool) -> None:
    """One Ctrl-C a round, at a random moment of it; whatever it hits, the next round works."""
    begun: SimpleQueue[int] = SimpleQueue()
    struck: SimpleQueue[int] = SimpleQueue()
    main = threading.main_thread().ident
    assert main is not None

    def strike() -> None:
        moments = random.Random(7).choices(range(1000), k=ROUNDS)
        for moment in moments:
            number = begun.get()
            time.sleep(moment * 1e-6)
            signal.pthread_kill(main, signal.SIGINT)
            struck.put(number)
            struck.put(number)  # the first may be taken at the moment at which the signal is acted upon

    striker = threading.Thread(target=strike)
    striker.start()
    for number in range(ROUNDS):
        try:
            begun.put(number)
            pool.allocate(8).free()
            wait_for(number, struck)
        except KeyboardInterrupt:
            wait_for(number, struck)
    striker.join()
    assert pool.allocate(8).nbytes == 8
    assert pool.session_id == 1


def test_interrupted_batch_leaves_no_slab(server: ScriptedServer, pool: Pool) -> None:
    def stop_at_the_fifth(peer: Peer, request_id: int, request: Request) -> None:
        server.answer(peer, request_id, request)
        if len(server.slabs) == 5:
            server.rules[Allocate] = hold
            os.kill(os.getpid(), signal.SIGINT)

    waiting = server.hold(Allocate)
    hold = server.rules[Allocate]
    server.rules[Allocate] = stop_at_the_fifth
    with pytest.raises(KeyboardInterrupt):
        pool.allocate_many([8] * 10, lease="persistent")
    pool.stat()  # by now the server has all that was sent
    for asked in waiting:
        server.answer(*asked)
    pool.stat()
    pool.stat()
    assert server.slabs == {}


# Connections that break -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Stat, Listing, Open, Free])
def test_harmless_request_is_sent_again(server: ScriptedServer, pool: Pool, kind: type[Request]) -> None:
    slab = pool.allocate(1, name="a")

    server.cut_once(kind)
    requests: dict[type[Request], Callable[[], object]] = {
        Stat: pool.stat,
        Listing: pool.slabs,
        Open: lambda: pool.open("a"),
        Free: slab.free,
    }
    requests[kind]()
    assert len(server.seen(kind)) == 2
    first, second = server.seen(Hello)
    assert first.resume is None
    assert second.resume is not None
    assert second.resume.session == pool.session_id == 1


def test_free_that_was_done_before_the_cut_succeeds(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(1)

    server.cut_once(Free, done=True)
    slab.free()
    with pytest.raises(SlabNotFound):
        slab.free()


def test_allocate_is_never_sent_again(server: ScriptedServer, pool: Pool) -> None:
    server.cut_once(Allocate)
    with pytest.raises(ServerLost, match="unknown"):
        pool.allocate(1)
    assert len(server.seen(Allocate)) == 1
    assert pool.stat().server == "scripted"


def test_allocate_is_sent_if_the_connection_ended_before(server: ScriptedServer, pool: Pool) -> None:
    server.stop()
    server.start()
    assert pool.allocate(1).nbytes == 1
    assert pool.epoch == 2


def test_server_that_is_away_is_waited_for(server: ScriptedServer, pool: Pool) -> None:
    server.stop()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.stat)
        server.start()
        assert waiting.result().epoch == 2


def test_server_that_stays_away_is_lost_at_the_deadline(server: ScriptedServer, pool: Pool) -> None:
    server.stop()
    with pytest.raises(ServerLost, match="gone"):
        pool.allocate(1, timeout=BRIEF)


def test_session_that_has_ended_is_opened_anew(server: ScriptedServer, pool: Pool) -> None:
    slab = pool.allocate(1)
    server.stop()
    server.sessions = {1: b"of somebody else"}
    server.slabs.clear()
    server.start()
    assert pool.stat().server == "scripted"
    assert pool.session_id == 2
    with pytest.raises(StaleSlab):
        slab.attachment.ticket.renew(5.0)


def test_many_callers_reconnect_once(server: ScriptedServer, pool: Pool) -> None:
    server.stop()
    server.start()
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(pool.stat) for _ in range(8)]
        epochs = {stat.result().epoch for stat in waiting}
    assert epochs == {2}
    assert len(server.seen(Hello)) == 2


# Connecting -----------------------------------------------------------------------------------------


def test_no_server_is_an_error_at_once(server: ScriptedServer) -> None:
    server.stop()
    with pytest.raises(ServerLost, match="farpool serve"):
        connect(f"unix://{server.path}")


def test_silent_server_meets_the_deadline(server: ScriptedServer) -> None:
    server.hold(Hello)
    with pytest.raises(DeadlineExceeded, match="hello"):
        connect(f"unix://{server.path}", timeout=BRIEF)


def test_refused_hello_says_why(server: ScriptedServer) -> None:
    def refuse(*_: object) -> None:
        raise ProtocolError("the client speaks version 1, this server 7")

    server.rules[Hello] = refuse
    with pytest.raises(ProtocolError, match="version 1"):
        connect(f"unix://{server.path}")


def test_another_kind_of_server(server: ScriptedServer) -> None:
    def answer(peer: Peer, *_: object) -> None:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    server.rules[Hello] = answer
    with pytest.raises(ServerLost, match="frame of"):
        connect(f"unix://{server.path}")


def test_tcp_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServerLost, match=f"127.0.0.1:{port}"):
        connect(f"farpool://127.0.0.1:{port}")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5", True])
def test_timeouts_that_cannot_be(server: ScriptedServer, pool: Pool, timeout: float) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        pool.stat(timeout=timeout)


# Life and end ---------------------------------------------------------------------------------------


def test_heartbeat_needs_no_call(server: ScriptedServer, pool: Pool) -> None:
    server.heartbeat = 0.05
    with connect_again(pool, server):
        server.seen(Heartbeat, 2)


def connect_again(pool: Pool, server: ScriptedServer) -> Pool:
    server.stop()
    server.start()
    pool.stat()
    return pool


def test_close_says_goodbye_once(server: ScriptedServer, pool: Pool) -> None:
    with ThreadPoolExecutor(4) as threads:
        for closing in [threads.submit(pool.close) for _ in range(4)]:
            closing.result()
    pool.close()
    assert len(server.seen(Goodbye)) == 1
    with pytest.raises(InvalidArgument, match="closed"):
        pool.stat()


def test_goodbye_names_what_is_still_mapped(server: ScriptedServer, pool: Pool) -> None:
    """The bytes under a live view stay charged: the slab is named, and not detached."""
    slab, other = pool.allocate(8), pool.allocate(8)
    view = slab.view()
    pool.close()
    assert server.seen(Goodbye)[0].mapped == [(slab.id, slab.generation)]
    assert [detach.id for detach in server.seen(Detach)] == [other.id]
    view.release()


def test_more_is_mapped_than_a_goodbye_can_name(
    server: ScriptedServer, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a Goodbye the server takes all of it for mapped."""
    monkeypatch.setattr("farpool.client.session.MAX_MAPPED", 1)
    views = [pool.allocate(8).view() for _ in range(2)]
    pool.close()
    server.stop()
    assert Goodbye not in [type(request) for _, request in server.requests]
    del views


def test_longest_goodbye_fits_a_request() -> None:
    assert len(encode_request(1 << 62, Goodbye(mapped=[(1 << 62, 1 << 62)] * MAX_MAPPED))) <= MAX_REQUEST_BYTES


@pytest.mark.parametrize("tenant", [5, b"default", True])
def test_tenants_that_cannot_be(server: ScriptedServer, tenant: str) -> None:
    with pytest.raises(InvalidArgument, match="tenant"):
        connect(f"unix://{server.path}", tenant=tenant)
    assert not server.requests


def test_close_ends_calls_that_wait(server: ScriptedServer, pool: Pool) -> None:
    server.hold(Stat)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.stat)
        server.seen(Stat)
        pool.close()
        with pytest.raises((ServerLost, InvalidArgument), match="closed"):
            waiting.result()


def test_close_without_a_server(server: ScriptedServer, pool: Pool) -> None:
    server.stop()
    pool.close()
    assert pool.closed


def test_pool_that_is_dropped_warns_and_ends(server: ScriptedServer, make_pool: Callable[[], Pool]) -> None:
    pool = make_pool()
    with pytest.warns(ResourceWarning, match="never closed"):
        del pool
    server.seen(Goodbye)


def test_slab_keeps_its_pool(make_pool: Callable[[], Pool]) -> None:
    slab = make_pool().allocate(1)
    assert slab.read(1) == b"\0"
    with pytest.warns(ResourceWarning, match="never closed"):
        del slab


@pytest.mark.usefixtures("no_leak")
def test_nothing_stays_open(server: ScriptedServer, pool: Pool) -> None:
    pool.close()
    server.stop()
    deadline = time.monotonic() + WITHIN
    while any(thread.name.startswith("farpool") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread of the session stays"
        time.sleep(0.005)
