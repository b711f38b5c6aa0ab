"""The fixtures of the conformance suite; ``README.md`` says how another package runs it.

``transport`` runs a test on each transport, ``api`` on the synchronous and the awaitable API. ``server`` serves
all of a worker's tests, which leave it as they found it; a test that ends or restarts one takes ``own_server``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.certificates import authority
from tests.conformance.driving import AnyPool, AnySlab, AwaitedPool
from tests.conformance.variants import OURS, Serving, Variant, variant_of

import farpool
from farpool.server.embedded import EmbeddedServer

APIS = ("sync", "aio")
SHOW_NO_MEMORY = {"tcp", "rdma", "stream"}
"""Known to have no views, so that tests of views are not even made for them."""
ONE_SIDED = {"rdma"}
"""Known to reach the server's memory without its processor: a stopped server stops no operation on bytes."""
CAPACITY = "512MiB"
CHILDREN = Path(__file__).with_name("children.py")

Connect = Callable[..., AnyPool]
StartChild = Callable[..., "subprocess.Popen[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        action="append",
        metavar="NAME[?OPTION=VALUE]",
        help="transport, or variant of one, to run the suite on, with options of its server and URL; "
        f"may be repeated (default: {', '.join(OURS)})",
    )


def names_of(config: pytest.Config) -> tuple[str, ...]:
    return tuple(config.getoption("--transport", None) or OURS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        names = list(names_of(metafunc.config))
        if "needs_views" in metafunc.fixturenames:
            names = [name for name in names if variant_of(name).transport not in SHOW_NO_MEMORY]
        metafunc.parametrize("variant", names, indirect=True, scope="module")
    if "api" in metafunc.fixturenames:
        metafunc.parametrize("api", APIS)


@pytest.fixture(scope="module")
def variant(request: pytest.FixtureRequest) -> Iterator[Variant]:
    """How the transport under test is served and reached, from this process and its children."""
    chosen = variant_of(str(request.param))
    if chosen.transport == "stream":
        request.getfixturevalue("stream_transport")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in chosen.environment.items():
            patch.setenv(name, value)
        if chosen.encrypted:
            patch.setenv("FARPOOL_TLS_CA", str(authority().ca))
            patch.setattr(EmbeddedServer, "url", EmbeddedServer.tcp_url)
        for name in ("url", "tcp_url") if chosen.options else ():
            patch.setattr(EmbeddedServer, name, with_query(getattr(EmbeddedServer, name), urlencode(chosen.options)))
        yield chosen


def with_query(plain: property, query: str) -> property:
    """Return an address of a server with a query behind it."""
    return property(lambda served: f"{plain.__get__(served)}?{query}")


@pytest.fixture(scope="module")
def transport(variant: Variant) -> str:
    """Name of the transport under test."""
    return variant.transport


@pytest.fixture(scope="session")
def serving(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """The servers that a worker's tests share."""
    plain = dict.fromkeys(chosen.transport for name in names_of(request.config) if (chosen := variant_of(name)).plain)
    with ExitStack() as undo, pytest.MonkeyPatch.context() as patch:
        if "stream" in plain:
            patch.setenv("PYTHONPATH", str(request.getfixturevalue("stream_package")), prepend=os.pathsep)
        yield Serving(CAPACITY, tuple(plain), undo)


@pytest.fixture(scope="module")
def server(variant: Variant, serving: Serving) -> EmbeddedServer:
    """One server with the transport under test. Leave it running, and its pool as empty as it was."""
    return serving.serve(variant)


@pytest.fixture
def own_server(variant: Variant) -> Iterator[EmbeddedServer]:
    """A server of the test's own."""
    with ExitStack() as undo:
        settings = variant.serving(undo)
        served = farpool.serve_embedded(capacity="64MiB", transports=[variant.transport], **settings)
        yield undo.enter_context(served)


@pytest.fixture
def connect(api: str, transport: str) -> Iterator[Connect]:
    """Call with a URL (``timeout=``, ``tenant=``) for one more session over the transport and the API under test."""
    with ExitStack() as undo:

        def connect(url: str, *, timeout: float = 30.0, tenant: str | None = None) -> AnyPool:
            pool: farpool.Pool | AwaitedPool
            if api == "sync":
                pool = farpool.connect(url, transport=transport, timeout=timeout, tenant=tenant)
                undo.callback(pool.close)
            else:
                pool = AwaitedPool(url, transport, timeout, tenant)
                undo.callback(pool.end)
            return pool

        yield connect


@pytest.fixture
def pool(connect: Connect, server: EmbeddedServer) -> AnyPool:
    """A session of its own for each test."""
    return connect(server.url)


@pytest.fixture
def other(connect: Connect, server: EmbeddedServer) -> AnyPool:
    """A second session, of another client as far as the server can tell."""
    return connect(server.url)


@pytest.fixture
def slab(pool: AnyPool) -> AnySlab:
    """4 KiB of zeroes."""
    return pool.allocate(4096)


@pytest.fixture
def mapped(pool: AnyPool) -> bool:
    """Whether clients reach the memory itself, so that no operation on its bytes waits for the server."""
    with suppress(farpool.NotMappable):
        probe = pool.allocate(8)
        probe.view().release()
        probe.free()
        return True
    return False


@pytest.fixture
def alone(mapped: bool, transport: str) -> bool:
    """Whether an operation on a slab's bytes goes on without the server's process."""
    return mapped or transport in ONE_SIDED


@pytest.fixture
def needs_views(mapped: bool) -> None:
    """Pass a test over on a transport that shows no memory."""
    if not mapped:
        pytest.skip("this transport shows no memory")


@pytest.fixture
def start_child() -> Iterator[StartChild]:
    """Start a task of ``children.py`` in a process of its own, which ends with the test."""
    with ExitStack() as undo:

        def start(task: str, url: str, transport: str, *arguments: object) -> subprocess.Popen[str]:
            child = subprocess.Popen(
                [sys.executable, str(CHILDREN), task, url, transport, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            undo.enter_context(child)
            undo.callback(child.kill)
            return child

        yield start
