"""What a server does when the machine has no more to give: memory, descriptors, patience."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from farpool.protocol.addresses import parse_address
from farpool.protocol.errors import PoolFull
from farpool.protocol.messages import Allocate, Attached, Done, Free, Hello, ServerStat, SlabInfo, Stat
from farpool.server.embedded import EmbeddedServer, serve_embedded

Connect = Callable[..., Any]

WITHIN = 20.0
"""Seconds in which a server has to do what it must do; only a failure takes so long."""

FLOOD = 2000
"""Strangers, more than have a line each if they come within half a minute."""


def fill(client: Any, nbytes: int, slabs: list[SlabInfo]) -> None:
    """Allocate until it fails."""
    while True:
        slabs.append(client.ask(Allocate(nbytes=nbytes, lease="persistent"), Attached).slab)


@pytest.mark.root
def test_a_full_file_system_can_be_used_emptied_and_restarted_on(small_file_system: Path, connect: Connect) -> None:
    with serve_embedded(arena=small_file_system, capacity="64MiB", transports=["tcp"]) as server:
        client = connect(server.url)
        slabs: list[SlabInfo] = []
        for nbytes in (64 << 10, 1):
            with pytest.raises(PoolFull, match=r"asked for .* of the pool's 64 MiB are free, but the .*file system"):
                fill(client, nbytes, slabs)
        assert "arena is smaller than the capacity" in server.log()
        assert connect(server.url).ask(Stat(), ServerStat).slabs == len(slabs)
        server.kill()
        server.start()
        client = connect(server.url, resume=client.key)
        assert client.ask(Stat(), ServerStat).slabs == len(slabs)
        for slab in slabs:
            client.ask(Free(id=slab.id, generation=slab.generation), Done)
        again = client.ask(Allocate(nbytes=256 << 10, lease="persistent"), Attached).slab
        assert again.id > slabs[-1].id
        server.restart()
        assert connect(server.url).ask(Stat(), ServerStat).slabs == 1


def test_without_descriptors_new_sessions_are_refused_and_old_ones_go_on(connect: Connect) -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
        first = connect(server.url)
        used = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 14, used + 14))
        others: list[Any] = []
        refused: list[Any] | None = None
        for _ in range(20):
            other = connect(server.url, hello=False)
            refused = first_answer(other)
            if refused is not None:
                break
            others.append(other)
        assert refused is not None
        assert refused[1:3] == [0, "FarpoolError"]
        assert "file descriptor" in refused[3]
        for _ in range(20):
            slab = first.ask(Allocate(nbytes=4096, transport="tcp"), Attached).slab
            first.ask(Free(id=slab.id, generation=slab.generation), Done)
        lines = [json.loads(line) for line in server.log().splitlines()]
        assert [line["event"] for line in lines if line["level"] == "error"] == []
        assert sum(line["event"] == "connection refused" for line in lines) == 1


def test_a_server_says_at_its_start_that_it_has_too_few_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not 0 < hard < 3 << 18:
        pytest.skip("the limit of descriptors is above what any number of sessions needs")
    for sessions, few in ((hard // 3, False), (hard // 3 + 1, True)):
        with serve_embedded(capacity="1MiB", transports=["tcp"], max_sessions=sessions) as server:
            lines = [json.loads(line) for line in server.log().splitlines()]
        said = [line for line in lines if line["event"] == "too few file descriptors for max_sessions"]
        assert bool(said) is few
        for line in said:
            assert (line["limit"], line["wanted"]) == (hard, 3 * sessions)
            assert "LimitNOFILE" in line["todo"]


def test_a_flood_of_strangers_does_not_fill_the_log() -> None:
    with serve_embedded(capacity="1MiB", transports=["tcp"]) as server:
        address = parse_address(server.tcp_url)
        for _ in range(FLOOD):
            with socket.create_connection((address.host, address.port), WITHIN) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while stranger.recv(4096):
                    pass
        until = time.monotonic() + WITHIN
        told: list[int] = []
        while sum(told) + (noted := count(server, "connection refused")) < FLOOD:
            assert time.monotonic() < until, server.log()
            time.sleep(0.05)
            told = [line["number"] for line in lines_of(server) if line["event"] == "lines left out"]
        assert noted < FLOOD
        assert sum(told) + noted == FLOOD


def lines_of(server: EmbeddedServer) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines()]


def count(server: EmbeddedServer, event: str) -> int:
    return sum(line["event"] == event for line in lines_of(server))


def first_answer(client: Any) -> list[Any] | None:
    """Return the error that the client got unasked, None if its hello was answered."""
    try:
        client.send(Hello(protocol=1, client="raw"))
        message: list[Any] = client.receive()
    except (BrokenPipeError, ConnectionResetError):
        message = client.receive()
    return message if message[0] == 2 else None
