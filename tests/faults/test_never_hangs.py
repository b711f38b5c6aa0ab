"""Every public call ends by its deadline, whatever the server does. The table must name every method."""

from __future__ import annotations

import ast
import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from tests.faults.conftest import TRANSPORTS, Serve, folder, patience
from tests.faults.muted import MutedRoad
from tests.faults.test_full import small

import farpool
import farpool.aio
from farpool.protocol.addresses import parse_address
from farpool.server.embedded import EmbeddedServer

__all__ = ["folder", "small"]

TIMEOUT: Final = 0.2
READS: Final = bytearray(64)

Call = Callable[[Any, Any], Any]

POOL_CALLS: Final[dict[str, Call]] = {
    "allocate": lambda pool, slab: pool.allocate(64, timeout=TIMEOUT),
    "allocate_many": lambda pool, slab: pool.allocate_many([64, 64], timeout=TIMEOUT),
    "open": lambda pool, slab: pool.open("shared", timeout=TIMEOUT),
    "free_many": lambda pool, slab: pool.free_many([], timeout=TIMEOUT),
    "stat": lambda pool, slab: pool.stat(timeout=TIMEOUT),
    "slabs": lambda pool, slab: pool.slabs(timeout=TIMEOUT),
    "reserve": lambda pool, slab: pool.reserve(slab, timeout=TIMEOUT),
    "commit": lambda pool, slab: pool.commit([], timeout=TIMEOUT),
    "release_host": lambda pool, slab: pool.release_host("nowhere", timeout=TIMEOUT),
}
SLAB_CALLS: Final[dict[str, Call]] = {
    "read": lambda pool, slab: slab.read(64, timeout=TIMEOUT),
    "read_into": lambda pool, slab: slab.read_into(READS, timeout=TIMEOUT),
    "readv": lambda pool, slab: slab.readv([(0, READS), (64, READS)], timeout=TIMEOUT),
    "gather": lambda pool, slab: slab.gather([0, 64], 64, out=bytearray(128), timeout=TIMEOUT),
    "write": lambda pool, slab: slab.write(b"x" * 64, timeout=TIMEOUT),
    "writev": lambda pool, slab: slab.writev([(0, b"x"), (64, b"x")], timeout=TIMEOUT),
    "load": lambda pool, slab: slab.load(0, timeout=TIMEOUT),
    "store": lambda pool, slab: slab.store(0, 1, timeout=TIMEOUT),
    "fetch_add": lambda pool, slab: slab.fetch_add(0, 1, timeout=TIMEOUT),
    "compare_swap": lambda pool, slab: slab.compare_swap(0, 0, 1, timeout=TIMEOUT),
    "wait": lambda pool, slab: slab.wait(128, 0, timeout=TIMEOUT),
    "notify": lambda pool, slab: slab.notify(128, timeout=TIMEOUT),
    "grant": lambda pool, slab: slab.grant(tenant="default", mode="r", timeout=TIMEOUT),
    "revoke": lambda pool, slab: slab.revoke(tenant="default", timeout=TIMEOUT),
    "grants": lambda pool, slab: slab.grants(timeout=TIMEOUT),
    "reserve": lambda pool, slab: slab.reserve(timeout=TIMEOUT),
}
LAST_CALLS: Final[dict[str, Call]] = {
    "free": lambda pool, slab: slab.free(timeout=TIMEOUT),
    "close": lambda pool, slab: slab.close(),
}
WAIT_FOR_NOBODY: Final = {
    "flush",
    "invalidate",
    "view",
    "array",
    "map",
    "close",
    "free",
    "awaitable",
    "attachment",
    "ask",
    "versions",
    "renew",
    "discard",
    "commit_drafts",
}
"""Public names of pools and slabs that ask the server nothing, or end what the table works on."""

STATES: Final = ("closed", "stopped", "half-open", "full")


def names_of(kind: type[object]) -> set[str]:
    """Return the public methods of a class, and the slots that hold native ones."""
    return {
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_")
        and not isinstance(value, property)
        and (callable(value) or inspect.isdatadescriptor(value))
    }


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        (farpool.Pool, POOL_CALLS),
        (farpool.Slab, SLAB_CALLS),
        (farpool.aio.Pool, POOL_CALLS),
        (farpool.aio.Slab, SLAB_CALLS),
    ],
)
def test_the_table_names_every_method(kind: type[object], calls: dict[str, Call]) -> None:
    waits_inside = (
        {"free", "flush", "wait", "notify", "grant", "revoke", "grants"} if kind is farpool.aio.Pool else set[str]()
    )
    assert names_of(kind) - WAIT_FOR_NOBODY - waits_inside <= set(calls), "add what is new to the table"


class Stage:
    """A server, the way to it, and what brings it into a state."""

    def __init__(self, server: EmbeddedServer, url: str, break_it: Callable[[], object]) -> None:
        self.server = server
        self.url = url
        self.break_it = break_it


@pytest.fixture
def stage(serve: Serve, request: pytest.FixtureRequest, state: str, transport: str) -> Iterator[Stage]:
    with ExitStack() as undo:
        if state == "full":
            arena = request.getfixturevalue("small") / "arena"
            server = serve(arena=arena, capacity="7MiB", transports=[transport])
            yield Stage(server, server.url, lambda: fill(arena))
            for filler in arena.glob("filler"):
                filler.unlink()
            return
        server = serve(transports=[transport])
        if state == "half-open":
            address = parse_address(server.tcp_url)
            road = undo.enter_context(MutedRoad(address.host, address.port))
            yield Stage(server, f"farpool://127.0.0.1:{road.port}", road.mute)
            return
        yield Stage(server, server.url, server.kill if state == "closed" else server.suspend)
        if state == "stopped":
            server.resume()


def fill(arena: Path) -> None:
    """Leave no byte to the file system of an arena and its catalog."""
    with (arena / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(1 << 16)):
                pass
        except OSError:
            return


def check(name: str, begun: float, error: BaseException | None) -> None:
    """See that a call has ended in time, and in our own words if not well."""
    took = time.monotonic() - begun
    assert took < patience(TIMEOUT), f"{name} took {took:.2f} s with a deadline of {TIMEOUT} s"
    assert error is None or isinstance(error, farpool.FarpoolError), f"{name}: {error!r}"


def calls_of(pool: Any, slab: Any) -> list[tuple[str, Call]]:
    """Return what these objects can do, in an order that ends them last."""
    found = [(f"pool.{name}", call) for name, call in POOL_CALLS.items() if hasattr(pool, name)]
    found += [(f"slab.{name}", call) for name, call in SLAB_CALLS.items() if hasattr(slab, name)]
    return found + [(f"slab.{name}", call) for name, call in LAST_CALLS.items()]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("state", STATES)
def test_every_call_ends_in_time(stage: Stage, transport: str) -> None:
    pool = farpool.connect(stage.url, transport=transport, timeout=TIMEOUT * 50)
    slab = pool.allocate(4096, name="shared")
    slab.write(bytes(64))
    stage.break_it()
    for name, call in calls_of(pool, slab):
        begun, error = time.monotonic(), None
        try:
            call(pool, slab)
        except Exception as caught:  # noqa: BLE001  check says which are ours
            error = caught
        check(name, begun, error)
    begun = time.monotonic()
    pool.close()
    assert time.monotonic() - begun < patience(1.0)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("state", STATES)
async def test_every_awaited_call_ends_in_time(stage: Stage, transport: str) -> None:
    pool = await farpool.aio.connect(stage.url, transport=transport, timeout=TIMEOUT * 50)
    slab = await pool.allocate(4096, name="shared")
    await slab.write(bytes(64))
    await asyncio.to_thread(stage.break_it)
    for name, call in calls_of(pool, slab):
        begun, error = time.monotonic(), None
        try:
            result: object = call(pool, slab)
            if isinstance(result, Awaitable):
                await result
        except Exception as caught:  # noqa: BLE001  check says which are ours
            error = caught
        check(name, begun, error)
    begun = time.monotonic()
    await pool.close()
    assert time.monotonic() - begun < patience(1.0)


@pytest.mark.parametrize("state", ["stopped", "half-open"])
@pytest.mark.parametrize("transport", ["tcp"])
def test_connecting_ends_in_time(stage: Stage, transport: str) -> None:
    stage.break_it()
    begun, error = time.monotonic(), None
    try:
        farpool.connect(stage.url, transport=transport, timeout=TIMEOUT)
    except farpool.FarpoolError as caught:
        error = caught
    check("connect", begun, error)
    assert error is not None


WALL_CLOCK: Final = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
FOR_PEOPLE: Final = {"server/audit.py", "server/logs.py", "server/catalog.py", "server/tenants.py", "server/grants.py"}
"""Files that note for people when something was; a lease, a session or a deadline never comes from the wall clock (but
a grant's end, where a restart of the machine lies between)."""


def test_a_wall_clock_that_jumps_moves_no_deadline() -> None:
    root = Path(farpool.__file__).parent
    found: set[str] = set()
    for part in ("client", "server", "transports", "protocol"):
        for path in sorted((root / part).rglob("*.py")):
            name = f"{part}/{path.relative_to(root / part)}"
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
                    continue
                if (node.value.id, node.attr) in WALL_CLOCK and name not in FOR_PEOPLE:
                    found.add(f"{name}:{node.lineno}")
    for path in sorted((root / "native").glob("*.p[yx][xd]")):
        if "CLOCK_REALTIME" in path.read_text():
            found.add(path.name)
    assert not found
