"""Servers that are told to stop, crash, or lose the process that embeds them: what stays, what goes, who notices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from tests.faults.conftest import APIS, TRANSPORTS, WITHIN, ClientProcess, Serve, StartClient, running, slabs_in, until

import farpool
from farpool.server.embedded import EmbeddedServer

LEASE = 60.0


def sockets_of(server: EmbeddedServer) -> list[str]:
    """Return the sockets beside the server's own."""
    return [path.name for path in Path(server.url.removeprefix("unix://")).parent.iterdir() if path.is_socket()]


def keep_three(server: EmbeddedServer, transport: str) -> None:
    """Make one slab for each kind of lease, each with its name as its bytes, and end the session without goodbye."""
    with farpool.connect(server.url, transport=transport) as pool:
        pool.allocate(100, name="leased", lease=LEASE).write(b"leased")
        pool.allocate(20 << 20, name="persistent", lease="persistent").write(b"persistent", (20 << 20) - 10)


def names_in(pool: Any) -> set[str | None]:
    """Return the names of the slabs in the pool."""
    return {info.name for info in pool.slabs()}


def free_all(server: EmbeddedServer) -> None:
    """Leave the pool empty."""
    with farpool.connect(server.url) as pool:
        for info in pool.slabs():
            pool.open(info.id).free()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sigterm_leaves_what_is_leased_or_persistent_and_nothing_else(serve: Serve, transport: str) -> None:
    server = serve()
    keep_three(server, transport)
    pool = farpool.connect(server.url, transport=transport, timeout=3.0)
    pool.allocate(100, name="session").write(b"session")
    assert len(slabs_in(server)) == 3
    server.stop()
    assert len(slabs_in(server)) == 2
    assert not sockets_of(server)
    assert (Path(server.arena) / ".farpool" / "catalog.sqlite").is_file()
    server.start()
    assert names_in(pool) == {"leased", "persistent"}
    pool.close()
    with farpool.connect(server.url, transport=transport) as after:
        assert after.open("leased").read(6) == b"leased"
        assert after.open("persistent").read(10, (20 << 20) - 10) == b"persistent"
    free_all(server)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_crash_leaves_bytes_and_no_orphans(serve: Serve, start_client: StartClient, transport: str, api: str) -> None:
    server = serve()
    keep_three(server, transport)
    client = start_client(server, transport, api, timeout=30.0)
    server.kill()
    orphan = Path(server.arena) / "slab-999999"
    orphan.write_bytes(b"nobody's")
    server.start()
    assert not orphan.exists()
    assert len(sockets_of(server)) == 2
    with farpool.connect(server.url, transport=transport) as pool:
        assert names_in(pool) == {"leased", "persistent", None}
        assert pool.open("leased").read(6) == b"leased"
        assert pool.open("persistent").read(10, (20 << 20) - 10) == b"persistent"
        with pool.open(client.slab) as shared:
            before = shared.read(8)
            until(lambda: is_past(client, lambda: shared.read(8) != before), "the client goes on by itself")
    client.end()
    until(lambda: len(slabs_in(server)) == 2, "the client's slab is gone")
    free_all(server)


def is_past(client: ClientProcess, true: Callable[[], bool]) -> bool:
    """Tell whether *true*; a write that the crash hit is lost, and the client is told to go on."""
    if (said := client.said()) is not None:
        assert said["error"] == "ServerLost", said
        client.tell("again")
    return true()


def lets_in(url: str) -> bool:
    """Tell whether the server opens a session."""
    try:
        farpool.connect(url, transport="tcp", timeout=1.0).close()
    except farpool.FarpoolError:
        return False
    return True


def test_a_drain_waits_for_transfers_and_a_second_sigterm_does_not(serve: Serve, start_client: StartClient) -> None:
    server = serve(drain_timeout=600.0)
    client = start_client(server, "tcp", "sync", timeout=1.0)
    os.kill(server.pid, signal.SIGTERM)
    until(lambda: not lets_in(server.tcp_url), "nobody is let in")
    assert client.said() is None, "the drain has stopped a client's transfers"
    pid = server.pid
    os.kill(pid, signal.SIGTERM)
    assert client.expect("failed")["error"] in ("ServerLost", "DeadlineExceeded")
    until(lambda: not running(pid), "the second signal ends the server")
    assert not sockets_of(server)
    assert not slabs_in(server)


def test_a_drain_ends_when_the_clients_are_idle(serve: Serve) -> None:
    server = serve(drain_timeout=600.0)
    with farpool.connect(server.url, transport="tcp", timeout=1.0) as pool:
        slab = pool.allocate(100)
        server.stop()
        assert not slabs_in(server)
        with pytest.raises((farpool.ServerLost, farpool.DeadlineExceeded)):
            slab.read(8)


PARENT = """
import sys, farpool
with farpool.serve_embedded(capacity="64MiB") as server:
    print(server.pid, server.arena, server.url, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_end_of_the_embedding_process_leaves_nothing(nothing_left: None, transport: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=PIPE, stdout=PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, arena, url = parent.stdout.readline().split()
        client = ClientProcess(url, transport, "sync", timeout=1.0)
        try:
            parent.kill()
            parent.wait()
            until(lambda: not running(int(pid)), "the server has ended")
            made = [Path(arena), Path(url.removeprefix("unix://")).parent]
            assert not [path for path in made if path.exists()]
            assert client.expect("failed")["error"] in ("ServerLost", "DeadlineExceeded", "StaleSlab")
        finally:
            client.end()


def test_a_stop_is_prompt_although_clients_are_stopped(serve: Serve, start_client: StartClient) -> None:
    server = serve(drain_timeout=1.0)
    clients = [start_client(server, transport) for transport in TRANSPORTS]
    for client in clients:
        client.send(signal.SIGSTOP)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < WITHIN
    assert not slabs_in(server)
    assert not sockets_of(server)
