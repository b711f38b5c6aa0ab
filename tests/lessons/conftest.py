"""A server for the lessons' tests. Each file names its row of the lessons that the project was given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import farpool
from farpool.server.embedded import EmbeddedServer

TRANSPORTS = ("cxl", "tcp")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server with both transports. Leave it running."""
    with farpool.serve_embedded(capacity="256MiB", transports=TRANSPORTS) as served:
        yield served


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A server that the test may kill."""
    with farpool.serve_embedded(capacity="64MiB", transports=TRANSPORTS) as served:
        yield served


@pytest.fixture
def pool(server: EmbeddedServer, transport: str) -> Iterator[farpool.Pool]:
    with farpool.connect(server.url, transport=transport) as connected:
        yield connected


@pytest.fixture
def other(server: EmbeddedServer, transport: str) -> Iterator[farpool.Pool]:
    """Another session."""
    with farpool.connect(server.url, transport=transport) as connected:
        yield connected
