"""Clients that are killed or stopped in the middle of their transfers: their slabs go, and nobody else notices."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from tests.faults.conftest import APIS, TRANSPORTS, Serve, StartClient, slabs_in, until

import farpool
from farpool.client.pool import Pool
from farpool.client.slab import Slab

SESSION_TIMEOUT = 1.0


@contextmanager
def working(pool: Pool) -> Generator[None]:
    """Use a slab of one's own in another thread meanwhile; whatever fails there fails the test."""
    errors: list[BaseException] = []
    done = threading.Event()
    turns = 0

    def work() -> None:
        nonlocal turns
        try:
            with pool.allocate(1 << 20) as slab:
                while not done.is_set() or not turns:
                    turns += 1
                    block = turns.to_bytes(4, "little") * (slab.nbytes // 4)
                    slab.write(block)
                    assert slab.read(slab.nbytes) == block
                    pool.allocate(100).free()
                slab.free()
        except BaseException as error:  # noqa: BLE001  it is raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not errors, errors


def is_stale(slab: Slab) -> bool:
    """Tell whether reading the slab says that it is gone."""
    try:
        slab.read(8)
    except farpool.StaleSlab:
        return True
    return False


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_killed_client_is_forgotten(serve: Serve, start_client: StartClient, transport: str, api: str) -> None:
    server = serve()
    with farpool.connect(server.url, transport=transport) as pool, working(pool):
        client = start_client(server, transport, api)
        with pool.open(client.slab) as shared:
            client.send(signal.SIGKILL)
            until(lambda: is_stale(shared), "the killed client's slab is stale")
            with pytest.raises(farpool.StaleSlab):
                shared.write(b"late")
        with pytest.raises(farpool.SlabNotFound):
            pool.open(client.slab)
        until(lambda: f"slab-{client.slab}" not in slabs_in(server), "the killed client's slab has no file")
        until(lambda: pool.stat().sessions == 1, "the killed client has no session")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_stopped_client_ends_and_finds_out_when_it_wakes(
    serve: Serve, start_client: StartClient, transport: str, api: str
) -> None:
    server = serve(session_timeout=SESSION_TIMEOUT)
    with farpool.connect(server.url, transport=transport) as pool, working(pool):
        client = start_client(server, transport, api)
        with pool.open(client.slab) as shared:
            client.send(signal.SIGSTOP)
            until(lambda: is_stale(shared), "the stopped client's slab is stale")
        until(lambda: pool.stat().sessions == 1, "the stopped client has no session")
        file = f"slab-{client.slab}"
        if transport == "cxl":
            assert file in slabs_in(server), "the stopped client still has it mapped"
        else:
            until(lambda: file not in slabs_in(server), "the stopped client's slab has no file")
        client.send(signal.SIGCONT)
        assert client.expect("failed")["error"] in ("StaleSlab", "ServerLost")  # lost: in the middle of a write
        until(lambda: file not in slabs_in(server), "the stale slab has no file")
        client.tell("try")
        assert client.expect("failed")["error"] == "StaleSlab"
        client.tell("allocate")
        fresh = client.expect("allocated")["slab"]
        client.tell("try")
        client.expect("worked")
        assert fresh in {info.id for info in pool.slabs()}
        client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_client_that_was_stopped_for_a_moment_goes_on(
    serve: Serve, start_client: StartClient, transport: str, api: str
) -> None:
    server = serve(session_timeout=60.0)
    client = start_client(server, transport, api, timeout=60.0)
    with farpool.connect(server.url, transport=transport) as pool, pool.open(client.slab) as shared:
        client.send(signal.SIGSTOP)
        before = shared.read(8)
        with working(pool):
            assert shared.read(8) == before
        client.send(signal.SIGCONT)
        until(lambda: shared.read(8) != before, "the client writes again")
    assert client.said() is None


def test_clients_of_every_kind_are_killed_at_once(serve: Serve, start_client: StartClient) -> None:
    server = serve()
    with farpool.connect(server.url, transport="tcp") as pool, working(pool):
        clients = [start_client(server, transport, api) for transport in TRANSPORTS for api in APIS]
        for client in clients:
            os.kill(client.pid, signal.SIGKILL)
        until(lambda: pool.stat().sessions == 1, "no killed client has a session")
        gone = {f"slab-{client.slab}" for client in clients}
        until(lambda: not gone & slabs_in(server), "no killed client's slab has a file")
