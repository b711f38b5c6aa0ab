"""Host B's side of the suite: the line to host A, and pools over the wire and over the memory that both hosts have."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

import farpool

TRANSPORTS: Final = ("tcp", "rdma", "cxl")
DEFAULT: Final = (
    "--listen",
    "0.0.0.0:7700",
    "--insecure",
    "--transports",
    ",".join(TRANSPORTS),
    "--session-timeout",
    "60",
)
"""How host A serves, if a test says nothing else; a guest that is slow is not silent."""
WITHIN: Final = 300.0
"""Seconds in which what must happen has happened, however busy the machine below the guests is."""
TIMEOUT: Final = 60.0
ORDER: Final = {"test_incoherent.py": -1, "test_losing_host_a.py": 1}
"""The others need one kind of server, and to start one takes a guest a while; host A is lost last."""
HOW: Final = "farpool-lab run --hosts 2 --rdma --cxl 512M -- bash tests/two_hosts/run.sh"

Connect = Callable[..., farpool.Pool]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pass these tests over where there is no host A, and bring them into order."""
    folder = Path(__file__).parent
    reason = ""
    if os.environ.get("LAB_NAME") != "B" or os.environ.get("LAB_IP") == os.environ.get("LAB_PEER_IP"):
        reason = f"this is not host B of two guests; run: {HOW}"
    elif not os.environ.get("LAB_DAX") or not os.environ.get("LAB_RDMA_DEV"):
        reason = f"the guests lack --rdma or --cxl; run: {HOW}"
    for item in items:
        if reason and folder in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: ORDER.get(item.path.name, 0) if item.path.parent == folder else 0)


class Line:
    """The line to host A: a call returns when host A has answered; ``begin`` and ``finish`` let both work at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rw")

    def begin(self, operation: str, *arguments: object) -> None:
        self._stream.write(json.dumps([operation, arguments]) + "\n")
        self._stream.flush()

    def finish(self) -> Any:
        result, error = json.loads(self._stream.readline())
        assert error is None, error
        return result

    def __call__(self, operation: str, *arguments: object) -> Any:
        self.begin(operation, *arguments)
        return self.finish()

    def serve(self, *arguments: str) -> str:
        """Have a server on the shared device, with the last word on its settings; return its URL."""
        self("serve", ["--arena", os.environ["LAB_DAX"], "--capacity", "128MiB", *arguments])
        return f"farpool://{os.environ['LAB_PEER_IP']}:7700"

    def close(self) -> None:
        self._stream.close()


@pytest.fixture(scope="session")
def host_a() -> Iterator[Line]:
    """Host A, which may come up after host B."""
    end = time.monotonic() + WITHIN
    address = os.environ["LAB_PEER_IP"], int(os.environ["LAB_PORT"])
    while True:
        try:
            connection = socket.create_connection(address, timeout=WITHIN)
            break
        except OSError:
            assert time.monotonic() < end, "host A does not answer"
            time.sleep(0.1)
    with connection:
        line = Line(connection)
        yield line
        line.close()


@pytest.fixture
def url(host_a: Line) -> str:
    """Address of a server on host A with the default settings."""
    return host_a.serve(*DEFAULT)


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Call with a URL and a transport for a pool of this host, which the test's end closes."""
    with ExitStack() as undo:

        def connect(url: str, transport: str, timeout: float = TIMEOUT) -> farpool.Pool:
            return undo.enter_context(farpool.connect(url, transport=transport, timeout=timeout))

        yield connect
