"""Servers that are killed or stopped under transfers: an error within the deadline, and then the clients go on."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from tests.faults.conftest import APIS, TRANSPORTS, Serve, StartClient, ends_in_time, until
from tests.faults.lateness import patience

import farpool
from farpool.client.slab import Slab

TIMEOUT = 1.0
LOST = ("ServerLost", "DeadlineExceeded")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_killed_server_is_an_error_in_time_and_comes_back(
    serve: Serve, start_client: StartClient, transport: str, api: str
) -> None:
    server = serve()
    clients = [start_client(server, transport, api, timeout=TIMEOUT) for _ in range(2)]
    server.kill()
    for client in clients:
        failed = client.expect("failed")
        assert failed["error"] in LOST, failed
        assert failed["seconds"] < patience(TIMEOUT)
        client.tell("try")
        assert client.expect("failed")["error"] in LOST
    server.start()
    for client in clients:
        client.tell("try")
        client.expect("worked")
        client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_stopped_server_is_an_error_in_time_and_goes_on(
    serve: Serve, start_client: StartClient, transport: str, api: str
) -> None:
    server = serve()
    clients = [start_client(server, transport, api, timeout=TIMEOUT) for _ in range(2)]
    server.suspend()
    for client in clients:
        failed = client.expect("failed")
        assert failed["error"] in LOST, failed
        assert failed["seconds"] < patience(TIMEOUT)
        client.tell("try")
        assert client.expect("failed")["error"] in LOST
    server.resume()
    for client in clients:
        client.tell("try")
        client.expect("worked")
        client.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_a_client_goes_on_by_itself_after_a_restart(
    serve: Serve, start_client: StartClient, transport: str, api: str
) -> None:
    server = serve()
    client = start_client(server, transport, api, timeout=30.0)
    for _ in range(2):
        server.kill()
        server.start()
        with farpool.connect(server.url, transport=transport) as pool, pool.open(client.slab) as shared:
            before = shared.read(8)

            def goes_on(shared: Slab = shared, before: bytes = before) -> bool:
                if (said := client.said()) is not None:
                    assert said["error"] == "ServerLost", said  # a write whose outcome is unknown is not repeated
                    client.tell("again")
                return shared.read(8) != before

            until(goes_on, "the client writes again")
        # Ours has said goodbye: a server that died before it noted that would take us for one that still maps.
        with farpool.connect(server.url, transport="tcp") as look:

            def is_noted(look: farpool.Pool = look) -> bool:
                return look.stat().sessions == 2

            until(is_noted, "the client's session and this one are left")


async def test_clients_that_make_no_call_keep_their_sessions(serve: Serve) -> None:
    grace = 2.0
    server = serve(resume_grace=grace)
    with ExitStack() as stack:
        pools = [stack.enter_context(farpool.connect(server.url, transport=transport)) for transport in TRANSPORTS]
        slabs = [pool.allocate(4096) for pool in pools]
        async with farpool.aio.connect(server.url) as awaited:
            awaited_slab = await awaited.allocate(4096)
            server.kill()
            server.start()
            time.sleep(grace + 1)  # noqa: ASYNC251  the event loop need not run
            assert await awaited_slab.read(4) == bytes(4)
            assert [slab.read(4) for slab in slabs] == [bytes(4)] * len(slabs)


async def test_awaited_calls_need_none_of_the_threads_of_the_event_loop(serve: Serve) -> None:
    """An application may keep all of them busy for as long as it likes."""
    server = serve()
    loop, done = asyncio.get_running_loop(), threading.Event()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    busy = loop.run_in_executor(None, done.wait)
    try:
        async with farpool.aio.connect(server.url, transport="tcp") as pool:
            slab = await pool.allocate(4096)
            await slab.write(b"word")
            server.kill()
            with ends_in_time(TIMEOUT, "a read"), suppress(farpool.ServerLost, farpool.DeadlineExceeded):
                await slab.read(4, timeout=TIMEOUT)
            server.start()
            assert await slab.read(4, timeout=30.0) == b"word"
    finally:
        done.set()
        await busy
        executor.shutdown()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ctrl_c_is_prompt_while_the_server_is_stopped(serve: Serve, start_client: StartClient, transport: str) -> None:
    server = serve()
    client = start_client(server, transport, "sync", timeout=60.0)
    server.suspend()
    until(client.is_waiting, "the client waits for the server")
    client.send(signal.SIGINT)
    assert client.expect("failed")["error"] == "KeyboardInterrupt"
    server.resume()
    client.tell("try")
    client.expect("worked")
    client.close()


@pytest.mark.parametrize("over", ["unix", "tcp"])
async def test_a_connect_to_a_stopped_server_ends_in_time(serve: Serve, over: str) -> None:
    server = serve()
    url = server.url if over == "unix" else server.tcp_url
    server.suspend()
    begun = time.monotonic()
    with pytest.raises(farpool.DeadlineExceeded):
        farpool.connect(url, timeout=0.5)
    with pytest.raises(farpool.DeadlineExceeded):
        await farpool.aio.connect(url, timeout=0.5)
    assert time.monotonic() - begun < patience(1.0, begun)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_pool_is_closed_although_its_server_is_stopped(serve: Serve, transport: str) -> None:
    server = serve()
    pool = farpool.connect(server.url, transport=transport)
    slab = pool.allocate(4096)
    slab.write(b"word")
    server.suspend()
    begun = time.monotonic()
    slab.close()
    pool.close()
    assert time.monotonic() - begun < patience(1.0, begun)
