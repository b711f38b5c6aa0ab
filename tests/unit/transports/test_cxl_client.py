"""The client half of cxl at a socket whose queue of connections is full."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from tempfile import TemporaryDirectory

import pytest

from farpool.protocol.messages import Offer
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


def test_it_waits_for_room_in_the_queue(busy: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept_one(seconds: float) -> None:
        busy.accept()[0].close()

    monkeypatch.setattr("time.sleep", accept_one)
    client._connect(busy.getsockname(), 10.0).close()  # pyright: ignore[reportPrivateUsage]


def test_a_queue_that_stays_full_makes_cxl_unusable_in_time(
    busy: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PROBE_SECONDS", 0.05)
    probe = client.CxlClient().probe(Offer(transport="cxl", available=True, params={"socket": busy.getsockname()}))
    assert not probe.usable
    assert "stayed full" in probe.reason
