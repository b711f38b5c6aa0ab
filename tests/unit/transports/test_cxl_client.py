"""The client half of cxl at a socket that is busy, silent or well."""

from __future__ import annotations

import signal
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest

import farpool
from farpool.protocol.errors import DeadlineExceeded, StaleSlab
from farpool.protocol.messages import Offer
from farpool.transports.contract import Ticket
from farpool.transports.cxl import client


@pytest.fixture
def busy() -> Iterator[socket.socket]:
    """A listening socket whose queue has no room."""
    with ExitStack() as stack:
        path = f"{stack.enter_context(TemporaryDirectory())}/busy.cxl"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                waiting.setblocking(False)
                waiting.connect(path)
        yield listener


class Accepting(threading.Event):
    """Makes room while it is waited for."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__()
        self.listener = listener

    def wait(self, timeout: float | None = None) -> bool:
        self.listener.accept()[0].close()
        return False


def test_it_waits_for_room_in_the_queue(busy: socket.socket) -> None:
    client._connect(busy.getsockname(), monotonic() + 10.0, Accepting(busy)).close()  # pyright: ignore[reportPrivateUsage]


def test_a_queue_that_stays_full_makes_cxl_unusable_in_time(
    busy: socket.socket,
) -> None:
    offer = Offer(transport="cxl", available=True, params={"socket": busy.getsockname()})
    probe = client.CxlClient().probe(offer, 0.05)
    assert not probe.usable
    assert "stayed full" in probe.reason


# A server that is stopped -----------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A socket that accepts requests and answers none."""
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{folder}/silent.cxl")
        listener.listen()
        yield listener


def ticket_at(listener: socket.socket) -> Ticket:
    params = {"socket": listener.getsockname(), "session": 1, "secret": bytes(32)}
    return Ticket(4096, 1, 1, writable=True, params=params, renew=lambda seconds: params, timeout=3600.0)


def test_attaching_ends_by_its_own_deadline(silent: socket.socket) -> None:
    half = client.CxlClient()
    with pytest.raises(DeadlineExceeded):
        half.attach(ticket_at(silent), 0.05)
    half.close()


def test_another_thread_does_not_hold_it_up_and_closing_ends_both(silent: socket.socket) -> None:
    half = client.CxlClient()
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(half.attach, ticket_at(silent), 3600.0)
        with silent.accept()[0] as accepted:
            assert accepted.recv(1024)  # it has the lock, and waits for an answer
            with pytest.raises(DeadlineExceeded, match="another thread"):
                half.attach(ticket_at(silent), 0.05)
            half.close()
            with pytest.raises(StaleSlab, match="closed"):
                waiting.result(timeout=20)
    with pytest.raises(StaleSlab, match="closed"):
        half.attach(ticket_at(silent), 20.0)


def test_closing_in_the_thread_that_attaches_ends_that(silent: socket.socket) -> None:
    """As a finalizer does, or here a signal's handler: the thread has the lock already, and waits for an answer."""
    half = client.CxlClient()

    def close(number: int, frame: object) -> None:
        half.close()

    before = signal.signal(signal.SIGALRM, close)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(StaleSlab, match="closed"):
            half.attach(ticket_at(silent), 20.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


# What the server makes of it --------------------------------------------------------------------------------


def test_a_probe_counts_as_no_refusal_and_the_socket_has_the_mode_of_the_servers() -> None:
    with farpool.serve_embedded(capacity="16MiB", transports=["cxl"], socket_mode="0660") as server:
        with farpool.connect(server.url) as pool:
            assert pool.stat().transports["cxl"]["refused"] == 0
        path = Path(server.url.removeprefix("unix://"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.with_name(f"{path.name}.cxl").stat().st_mode) == 0o660
