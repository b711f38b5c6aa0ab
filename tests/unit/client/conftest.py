"""Pools that are connected to a scripted server over the plain transport."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.client.plain_transport import PlainTransport
from tests.unit.client.scripted_server import WITHIN, ScriptedServer

from farpool.client import aio
from farpool.client.closer import Closer
from farpool.client.pool import Pool
from farpool.client.session import Session
from farpool.client.transports import Selection, TransportReport
from farpool.protocol.addresses import Address


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A path for a Unix socket, short enough wherever temporary files are."""
    with tempfile.TemporaryDirectory(prefix="c-") as folder:
        yield Path(folder) / "s"


@pytest.fixture
def server(socket_path: Path) -> Iterator[ScriptedServer]:
    """A running scripted server."""
    scripted = ScriptedServer(socket_path)
    yield scripted
    scripted.stop()


@pytest.fixture
def transport() -> PlainTransport:
    """The client half that ``pool`` attaches over."""
    return PlainTransport()


def parts_of(server: ScriptedServer, transport: PlainTransport) -> tuple[Session, Selection, float]:
    session = Session(Address(path=str(server.path)))
    session.open(time.monotonic() + WITHIN)
    report = (TransportReport("plain", "chosen", ""),)
    return session, Selection("plain", transport, report), WITHIN


@pytest.fixture
def make_pool(server: ScriptedServer, transport: PlainTransport) -> Callable[[], Pool]:
    """Connect a pool to ``server``; the test closes it."""
    return lambda: Pool(*parts_of(server, transport))


@pytest.fixture
def pool(server: ScriptedServer, transport: PlainTransport) -> Iterator[Pool]:
    """A pool that is connected to ``server``."""
    with Pool(*parts_of(server, transport)) as connected:
        yield connected


@pytest.fixture
def make_aio_pool(server: ScriptedServer, transport: PlainTransport) -> Callable[[ThreadPoolExecutor], aio.Pool]:
    """Connect an awaitable pool to ``server``."""
    return lambda threads: aio.Pool(*parts_of(server, transport), threads, Closer())
