"""What requests do: slabs made, attached, freed and expired, sessions that end in every way, and who is told."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.descriptors import fetch_descriptor

from farpool.protocol.addresses import parse_address
from farpool.protocol.errors import (
    InvalidArgument,
    NameTaken,
    PoolFull,
    SlabNotFound,
    StaleSlab,
    TransportUnavailable,
)
from farpool.protocol.messages import (
    Allocate,
    Attach,
    Attached,
    Detach,
    Done,
    Free,
    Goodbye,
    Listing,
    Open,
    ServerStat,
    SlabInfo,
    SlabList,
    Stat,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB", log_level="debug", session_timeout=300, disconnect_grace=0.2) as running:
        yield running


@pytest.fixture(autouse=True)
def earlier_sessions_have_ended(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    while client.ask(Stat(), ServerStat).sessions > 1:
        time.sleep(0.02)
    client.ask(Goodbye(), Done)


def hold(attached: Attached, mode: str) -> int:
    """Return a descriptor of what a client has attached over cxl; the caller closes it."""
    slab = attached.slab
    return fetch_descriptor(attached.params, slab.id, slab.memory_generation, writable=mode == "rw")


def files(server: EmbeddedServer) -> set[str]:
    return {path.name for path in Path(server.arena).glob("slab-*")}


def made(client: Any, nbytes: int = 4096, **options: Any) -> SlabInfo:
    slab = client.ask(Allocate(nbytes=nbytes, **options), Attached).slab
    assert isinstance(slab, SlabInfo)
    return slab


def free(client: Any, slab: SlabInfo) -> None:
    client.ask(Free(id=slab.id, generation=slab.generation), Done)


def find(client: Any, slab: SlabInfo) -> SlabInfo | None:
    page = client.ask(Listing(after=slab.id - 1, limit=1), SlabList).slabs
    return page[0] if page and page[0].id == slab.id else None


def until_gone(client: Any, slab: SlabInfo) -> None:
    deadline = time.monotonic() + 20
    while find(client, slab) is not None:
        assert time.monotonic() < deadline, f"slab {slab.id} did not end"
        time.sleep(0.02)


def test_a_slab_lives_until_it_is_freed(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    before = client.ask(Stat(), ServerStat)
    slab = made(client, 5000, name="one")
    assert (slab.nbytes, slab.name, slab.lease, slab.state) == (5000, "one", "session", "live")
    assert slab.generation > 0
    assert f"slab-{slab.id}" in files(server)
    assert client.ask(Stat(), ServerStat).allocated == before.allocated + 8192
    free(client, slab)
    assert f"slab-{slab.id}" not in files(server)
    assert client.ask(Stat(), ServerStat).free == before.free
    for request in (
        Free(id=slab.id, generation=slab.generation),
        Attach(id=slab.id, generation=slab.generation, transport="tcp"),
    ):
        with pytest.raises(StaleSlab, match=f"slab {slab.id} of generation"):
            client.ask(request, Attached)
    with pytest.raises(SlabNotFound):
        client.ask(Open(id=slab.id), Attached)


def test_names_are_unique_and_free_again(server: EmbeddedServer, connect: Connect) -> None:
    client, other = connect(server.url), connect(server.tcp_url)
    slab = made(client, name="näme")
    with pytest.raises(NameTaken, match=f"belongs to slab {slab.id}") as caught:
        made(other, name="näme")
    assert caught.value.details["id"] == slab.id
    assert other.ask(Open(name="näme"), Attached).slab.id == slab.id
    free(other, slab)
    with pytest.raises(SlabNotFound, match="näme"):
        other.ask(Open(name="näme"), Attached)
    assert made(other, name="näme").id != slab.id


@pytest.mark.parametrize("fields", [{}, {"id": 1, "name": "x"}, {"name": "x", "mode": "w"}, {"name": "\x07"}])
def test_an_open_that_cannot_be_says_why(server: EmbeddedServer, connect: Connect, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        connect(server.url).ask(Open(**fields), Attached)


def test_another_generation_is_stale(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    slab = made(client)
    for request in (
        Free(id=slab.id, generation=slab.generation + 1),
        Attach(id=slab.id, generation=0, transport="cxl"),
    ):
        with pytest.raises(StaleSlab):
            client.ask(request, Attached)
    assert find(client, slab) is not None


@pytest.mark.parametrize("transport", ["cxl", "tcp"])
def test_allocating_and_attaching_is_one_trip(server: EmbeddedServer, connect: Connect, transport: str) -> None:
    client, other = connect(server.url), connect(server.url)
    reply = client.ask(Allocate(nbytes=4096, transport=transport), Attached)
    assert reply.transport == transport
    assert reply.params
    assert reply.slab.attached == 0 or find(client, reply.slab)
    opened = other.ask(Open(id=reply.slab.id, mode="r", transport=transport), Attached)
    assert opened.slab.attached == 2
    other.ask(Detach(id=reply.slab.id, generation=reply.slab.generation, transport=transport), Done)
    other.ask(Detach(id=reply.slab.id, generation=reply.slab.generation, transport=transport), Done)
    found = find(client, reply.slab)
    assert found is not None
    assert found.attached == 1


def test_an_unknown_transport_is_refused_with_what_there_is(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    slab = made(client)
    with pytest.raises(TransportUnavailable, match=r'"rdma" is not available.*cxl, tcp'):
        client.ask(Open(id=slab.id, transport="rdma"), Attached)


def test_holders_are_told_that_a_slab_is_gone(server: EmbeddedServer, connect: Connect) -> None:
    client, reader, stranger = connect(server.url), connect(server.url), connect(server.url)
    slab = made(client)
    reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached)
    free(client, slab)
    assert reader.event() == ("revoked", {"id": slab.id, "generation": slab.generation})
    stranger.ask(Stat(), ServerStat)
    assert stranger.events == []
    assert client.events == []


def test_a_slab_that_is_mapped_somewhere_stays_charged(server: EmbeddedServer, connect: Connect) -> None:
    client, reader = connect(server.url), connect(server.url)
    slab = made(client, 8192, name="mapped")
    held = hold(reader.ask(Open(id=slab.id, mode="r", transport="cxl"), Attached), "r")
    before = client.ask(Stat(), ServerStat)
    free(client, slab)
    after = client.ask(Stat(), ServerStat)
    assert (after.allocated, after.reclaiming) == (before.allocated - 8192, before.reclaiming + 8192)
    assert after.free == before.free
    listed = find(client, slab)
    assert listed is not None
    assert listed.state == "reclaiming"
    again = made(client, 8192, name="mapped")
    assert again.generation != slab.generation
    os.close(held)
    reader.ask(Detach(id=slab.id, generation=slab.generation, transport="cxl"), Done)
    assert find(client, slab) is None
    assert client.ask(Stat(), ServerStat).reclaiming == before.reclaiming


def test_a_holder_that_ends_lets_go(server: EmbeddedServer, connect: Connect) -> None:
    client, reader = connect(server.url), connect(server.url)
    slab = made(client, lease="persistent")
    held = hold(reader.ask(Open(id=slab.id, transport="cxl"), Attached), "rw")
    free(client, slab)
    assert find(client, slab) is not None
    os.close(held)
    reader.ask(Goodbye(), Done)
    assert find(client, slab) is None


def test_a_full_pool_says_what_is_free(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.url)
    room = client.ask(Stat(), ServerStat).free
    slab = made(client, room)
    with pytest.raises(PoolFull, match=r"asked for 4 KiB, 0 B of the pool's 64 MiB are free") as caught:
        made(client, 1)
    assert caught.value.details == {"asked": 4096, "free": 0, "capacity": 64 << 20}
    free(client, slab)
    free(client, made(client, room))


def test_goodbye_frees_session_slabs_and_keeps_others(server: EmbeddedServer, connect: Connect) -> None:
    client, other = connect(server.url), connect(server.url)
    session, kept, leased = made(client), made(client, lease="persistent"), made(client, lease=60.0)
    client.ask(Goodbye(), Done)
    assert find(other, session) is None
    assert f"slab-{session.id}" not in files(server)
    assert find(other, kept) is not None
    found = find(other, leased)
    assert found is not None
    assert found.expires_in is not None
    assert 50 < found.expires_in <= 60
    free(other, kept)
    free(other, leased)


def test_a_lost_connection_orphans_and_then_frees(server: EmbeddedServer, connect: Connect) -> None:
    client, other = connect(server.tcp_url), connect(server.url)
    slab = made(client)
    client.close()
    until_gone(other, slab)
    log = [line for line in server.log().splitlines() if f'"session": {client.welcome.session},' in line]
    assert any("did not come back in time" in line for line in log)


def test_many_slabs_of_an_ended_session_are_freed(server: EmbeddedServer, connect: Connect) -> None:
    client, other = connect(server.url), connect(server.url)
    slabs = [made(client, 1) for _ in range(700)]
    client.ask(Goodbye(), Done)
    for slab in (slabs[0], slabs[300], slabs[-1]):
        until_gone(other, slab)
    assert not files(server) & {f"slab-{slab.id}" for slab in slabs}


CHILD = """
import socket, sys
from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import Allocate, Hello, encode_request
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
line.sendall(encode_request(1, Hello(protocol=1, client="child")) + encode_request(2, Allocate(nbytes=4096)))
decoder, messages = FrameDecoder(), []
while len(messages) < 2:
    messages += map(decode_payload, decoder.feed(line.recv(65536)))
print(messages[0][2]["session"], messages[1][2]["slab"]["id"], messages[1][2]["slab"]["generation"], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def child_of(server: EmbeddedServer) -> Generator[subprocess.Popen[str]]:
    """Run a client process that owns one slab and says which."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, parse_address(server.url).path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def slab_of(child: subprocess.Popen[str]) -> tuple[int, SlabInfo]:
    assert child.stdout is not None
    session, number, generation = map(int, child.stdout.readline().split())
    return session, SlabInfo(id=number, generation=generation, nbytes=4096, tenant="default")


def test_a_killed_process_ends_its_session(server: EmbeddedServer, connect: Connect) -> None:
    with child_of(server) as child:
        session, slab = slab_of(child)
        other = connect(server.url)
        assert find(other, slab) is not None
        child.kill()
        until_gone(other, slab)
    log = [line for line in server.log().splitlines() if f'"session": {session},' in line]
    assert any("its process died" in line for line in log)


def test_a_stopped_process_ends_by_its_silence(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"], session_timeout=1.0) as server:
        with child_of(server) as child:
            session, slab = slab_of(child)
            child.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 30
            while f"slab-{slab.id}" in files(server):
                assert time.monotonic() < deadline
                time.sleep(0.02)
        log = [line for line in server.log().splitlines() if f'"session": {session},' in line]
        assert any("silent for too long" in line for line in log)


def test_a_lease_ends_after_its_owner_and_holders_are_told(server: EmbeddedServer, connect: Connect) -> None:
    client, reader = connect(server.url), connect(server.url)
    slab = made(client, lease=0.3)
    assert slab.lease == 0.3
    reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached)
    client.ask(Goodbye(), Done)
    assert reader.event() == ("expired", {"id": slab.id, "generation": slab.generation})
    with pytest.raises(StaleSlab):
        reader.ask(Attach(id=slab.id, generation=slab.generation, transport="tcp"), Attached)


def test_a_lease_without_an_owner_is_taken_over_by_who_attaches(server: EmbeddedServer, connect: Connect) -> None:
    client, heir = connect(server.url), connect(server.url)
    slab = made(client, lease=3600.0)
    client.ask(Goodbye(), Done)
    before = find(heir, slab)
    heir.ask(Open(id=slab.id, transport="tcp"), Attached)
    after = find(heir, slab)
    assert before is not None
    assert after is not None
    assert before.expires_in is not None
    assert after.expires_in is not None
    assert after.expires_in >= before.expires_in
    free(heir, slab)


def test_long_slabs_of_a_client_that_leaves_are_not_kept(server: EmbeddedServer, connect: Connect) -> None:
    client, other = connect(server.url), connect(server.url)
    client.send(Allocate(nbytes=48 << 20))
    client.send(Goodbye())
    client.wait_for_end()
    deadline = time.monotonic() + 20
    while other.ask(Stat(), ServerStat).allocated >= 48 << 20:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    free(other, made(other, 48 << 20))


def test_stat_has_the_numbers_of_pool_process_and_transports(server: EmbeddedServer, connect: Connect) -> None:
    stat = connect(server.url).ask(Stat(), ServerStat)
    assert stat.pid == server.pid
    assert stat.arena == server.arena
    assert stat.addresses == [server.url, server.tcp_url]
    assert stat.capacity == stat.allocated + stat.reclaiming + stat.free
    assert stat.cpu_seconds > 0
    assert set(stat.transports) == {"cxl", "tcp"}
    assert all(each["available"] for each in stat.transports.values())
    other = connect(server.tcp_url).ask(Stat(), ServerStat)
    assert (other.pid, other.arena) == (0, ""), "what an administrator alone is told"
    assert (other.epoch, other.capacity, set(other.transports)) == (stat.epoch, stat.capacity, set(stat.transports))
