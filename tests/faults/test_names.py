"""Names of hosts: a name server that says nothing, and addresses of which some, or all, say nothing."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.faults.conftest import APIS, Serve, ends_in_time
from tests.faults.starved import connected, result_of

import farpool
from farpool.client.pool import open_session
from farpool.protocol.addresses import parse_address

NAME = "pool.example"
TIMEOUT = 1.0

LookUp = Callable[[str], list[str]]
Silence = Callable[[str, int], int]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, LookUp]:
    """What this process's resolver says of names; to be filled in."""
    known: dict[str, LookUp] = {}
    ask = socket.getaddrinfo

    def answer(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host not in known or options.get("flags", 0) & socket.AI_NUMERICHOST:
            return ask(host, port, *arguments, **options)
        return [found for address in known[host](host) for found in ask(address, port, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return known


@pytest.fixture
def silence() -> Iterator[Silence]:
    """Call with an address and a port (0 for any): nobody answers there from then on, as behind a firewall."""
    with ExitStack() as undo:

        def fill(address: str, port: int) -> int:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = undo.enter_context(socket.socket(family))
            try:
                listener.bind((address, port))
            except OSError as error:
                pytest.skip(f"there is no {address} here: {error}")
            listener.listen(0)
            for _ in range(3):  # a queue of connections that is full: the kernel drops what asks for another
                filler = undo.enter_context(socket.socket(family))
                filler.setblocking(False)
                assert filler.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS)
            chosen: int = listener.getsockname()[1]
            return chosen

        yield fill


def refused(url: str) -> farpool.FarpoolError:
    """Connect; return the error, which comes by the deadline."""
    with ends_in_time(TIMEOUT, "connect"), pytest.raises(farpool.FarpoolError) as caught:
        farpool.connect(url, transport="tcp", timeout=TIMEOUT)
    return caught.value


def test_addresses_that_are_all_silent_share_one_deadline(names: dict[str, LookUp], silence: Silence) -> None:
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]
    names[NAME] = lambda _: addresses
    port = silence(addresses[0], 0)
    for address in addresses[1:]:
        silence(address, port)
    error = refused(f"farpool://{NAME}:{port}")
    assert isinstance(error, farpool.DeadlineExceeded)
    assert all(text in str(error) for text in (NAME, *addresses))


def test_every_address_that_refuses_is_named(names: dict[str, LookUp]) -> None:
    names[NAME] = lambda _: ["127.0.0.2", "127.0.0.3"]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and the port is nobody's at the other addresses, most likely
        error = refused(f"farpool://{NAME}:{bound.getsockname()[1]}")
    assert isinstance(error, farpool.ServerLost)
    assert "127.0.0.2: Connection refused, 127.0.0.3: Connection refused" in str(error)


@pytest.mark.parametrize("api", APIS)
async def test_a_silent_address_hides_no_other(
    serve: Serve, names: dict[str, LookUp], silence: Silence, api: str
) -> None:
    server = serve(listen="0.0.0.0:0", insecure=True, transports=["tcp"])  # its data port has the name that we use
    session, selection, _ = open_session(server.url, "tcp", TIMEOUT, None, None, None)
    selection.client.close()
    session.close()
    (offer,) = session.welcome.offers
    control = parse_address(server.tcp_url).port
    for port in (control, offer.params["port"]):
        silence("::1", port)
    names[NAME] = lambda _: ["::1", "127.0.0.1"]
    async with connected(f"farpool://{NAME}:{control}", "tcp", api) as pool:
        slab = await result_of(pool.allocate(64))
        await result_of(slab.write(b"word"))
        assert await result_of(slab.read(4)) == b"word"


def test_a_silent_name_server_is_asked_once_and_left_by_the_deadline(names: dict[str, LookUp]) -> None:
    answers = threading.Event()
    asked: list[str] = []

    def wait_for_an_answer(host: str) -> list[str]:
        asked.append(host)
        answers.wait()
        return []

    names[NAME] = wait_for_an_answer
    try:
        for _ in range(2):
            error = refused(f"farpool://{NAME}:7700")
            assert isinstance(error, farpool.DeadlineExceeded)
            assert NAME in str(error)
        assert asked == [NAME]
        child = os.fork()
        if child == 0:  # has not the thread that waits, and asks for itself
            names[NAME] = lambda _: ["127.0.0.1"]
            try:
                farpool.connect(f"farpool://{NAME}:1", timeout=60.0)
            except farpool.ServerLost:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        answers.set()
