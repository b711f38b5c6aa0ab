"""A pool server for a module of tests, and the command line called in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

import farpool
from farpool.cli.main import main
from farpool.server.embedded import EmbeddedServer


class Result(NamedTuple):
    """What one command did."""

    code: int
    out: str
    err: str


Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="64MiB") as served:
        yield served


@pytest.fixture
def bare(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run one command without telling it where a server is."""
    monkeypatch.delenv("FARPOOL_DEBUG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> Result:
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def cli(bare: Cli, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run one command against the module's server."""
    monkeypatch.setenv("FARPOOL_URL", server.url)
    return bare


@pytest.fixture
def pool(server: EmbeddedServer) -> Iterator[farpool.Pool]:
    with farpool.connect(server.url) as connected:
        yield connected
