"""Every public call ends by its deadline, whatever the server does: ``public_calls`` has the table of them.

All calls are made at once, each in a thread or a task of its own, so that those which wait for the same lock or the
same connection are held to their own deadlines. A call may last a tenth more than its timeout, and as much longer as a
thread that only sleeps is woken up late beside it: see ``lateness``. That tells nothing of a call which computes while
others do: what was late is tried once more, and must be in time then.
"""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import pytest
from tests.certificates import authority
from tests.faults import public_calls
from tests.faults.conftest import folder, watched
from tests.faults.lateness import patience
from tests.faults.muted import MutedRoad
from tests.faults.public_calls import DEFAULT, LOOP, NBYTES, TIMEOUT, Call, Subject
from tests.faults.test_full import small
from tests.faults.test_out_of_memory import starve

import farpool
import farpool.aio
from farpool.protocol.addresses import parse_address
from farpool.server.embedded import EmbeddedServer

__all__ = ["folder", "small"]

AMPLE: Final = 30.0
"""Seconds for what must succeed."""

SILENT: Final = ("closed", "stopped", "half-open")
SHORT_OF_SOMETHING: Final = ("full", "starved")
WAYS: Final = {"cxl": (*SILENT, *SHORT_OF_SOMETHING), "tcp": (*SILENT, *SHORT_OF_SOMETHING), "tls": SILENT}
"""How slabs are reached, ``tls`` being tcp with encryption, and the states of the server that are tried on each."""

NEEDS_TLS = pytest.mark.skipif(find_spec("farpool.native.tls") is None, reason="built only where libssl-dev is")


# The table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", public_calls.CLASSES)
def test_the_table_names_every_method(name: str) -> None:
    table = {label.partition(" ")[0] for label in public_calls.tables()[name]}
    exempt = {label.partition(".")[2] for label in public_calls.ASK_NOBODY if label.startswith(f"{name}.")}
    public: set[str] = set()
    for kind in public_calls.CLASSES[name]:
        public |= public_calls.methods_of(kind)
    assert public - exempt - table == set(), "add what is new to the table"
    assert (table | exempt) - public == set(), "the table names what is no more"
    assert not table & exempt


# The stage ------------------------------------------------------------------------------------------------------


class Stage:
    """A server, the way to it, and what brings it into a state."""

    def __init__(self, server: EmbeddedServer, url: str, transport: str, break_it: Callable[[], object]) -> None:
        self.server = server
        self.url = url
        self.transport = transport
        self.break_it = break_it
        self.mend = lambda: None

    def options(self, timeout: float) -> dict[str, Any]:
        """Return what a client connects with."""
        tls = farpool.Tls(ca=authority().ca) if self.url.startswith("farpools:") else None
        return {"transport": self.transport, "timeout": timeout, "tls": tls}


@contextmanager
def staged(request: pytest.FixtureRequest, way: str, state: str) -> Generator[Stage]:
    """Serve so that ``break_it`` brings the server, or the way to it, into *state*; mend it in the end."""
    transport = "tcp" if way == "tls" else way
    settings: dict[str, Any] = {"transports": [transport]}
    if way == "tls":
        settings["tls"] = authority().server().settings
    if state == "full":
        settings |= {"arena": request.getfixturevalue("small") / "arena", "capacity": "7MiB"}
    with ExitStack() as undo:
        server = undo.enter_context(watched(**settings))
        url = server.tcp_url if way == "tls" else server.url
        stage = Stage(server, url, transport, lambda: None)
        if state == "half-open":
            address = parse_address(server.tcp_url)
            road = undo.enter_context(MutedRoad(address.host, address.port))
            scheme = "farpools" if way == "tls" else "farpool"
            stage.url, stage.break_it = f"{scheme}://127.0.0.1:{road.port}", road.mute
        elif state == "full":
            stage.break_it = lambda: fill(settings["arena"])
            undo.callback((settings["arena"] / "filler").unlink)
        elif state == "starved":
            stage.break_it = lambda: starve(server)
            undo.callback(starve, server, enough=True)
        elif state == "stopped":
            stage.break_it = server.suspend
            undo.callback(server.resume)
        else:
            stage.break_it = server.kill
        yield stage


def fill(arena: Path) -> None:
    """Leave no byte to the file system of an arena and its catalog."""
    with (arena / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(1 << 16)):
                pass
        except OSError:
            return


# What the calls are made on -------------------------------------------------------------------------------------


async def result_of(value: object) -> Any:
    """Return what the synchronous API returned, or what the awaitable one gives."""
    if isinstance(value, Awaitable):
        return await cast("Awaitable[object]", value)
    return value


async def make_subject(pool: Any, pick: Callable[[str], str]) -> Subject:
    """Return what the calls of one pool are made on, with names of its own."""
    slab = await result_of(pool.allocate(NBYTES, timeout=AMPLE))
    await result_of(slab.write(bytes(64), timeout=AMPLE))
    moved = await result_of(pool.allocate(NBYTES, name=pick("moved"), timeout=AMPLE))
    await result_of(moved.write(bytes(64), timeout=AMPLE))
    draft = await result_of(slab.reserve(timeout=AMPLE))
    await result_of(draft.write(bytes(64), timeout=AMPLE))
    subject = Subject(pool, slab, moved, draft)
    for name in public_calls.SPARE_SLABS:
        subject.spare[name] = await result_of(pool.allocate(64, timeout=AMPLE))
    for name in public_calls.SPARE_DRAFTS:
        subject.spare[name] = await result_of(slab.reserve(timeout=AMPLE))
    return subject


def move(stage: Stage, names: Iterable[str]) -> None:
    """Replace the memory of slabs, by commits of another session's."""
    with farpool.connect(stage.url, **stage.options(AMPLE)) as other:
        for name in names:
            with other.open(name).reserve() as draft:
                draft.write(b"moved")
                draft.commit()


# The calls ------------------------------------------------------------------------------------------------------


class Findings:
    """What went wrong, all of it: the table says more than its first failure."""

    def __init__(self, api: str) -> None:
        self._api = api
        self.late: dict[str, str] = {}
        """What to say of calls that took too long, by their names."""
        self.wrong: list[str] = []

    def add(self, others: Findings) -> None:
        """Take what others have found."""
        self.late |= others.late
        self.wrong += others.wrong

    def note(self, name: str, took: float, seconds: float, error: BaseException | None) -> None:
        """Look at how a call has ended."""
        if took >= patience(seconds, time.monotonic() - took):
            label = f"{self._api} {name}"
            self.late[label] = f"{label} took {took:.2f} s, with a deadline of {seconds} s ({error!r})"
        if error is not None and not isinstance(error, farpool.FarpoolError):
            self.wrong.append(f"{self._api} {name} raised {error!r}")


def make_sync(call: Call, findings: Findings) -> None:
    """Make a call, and see that it ends in time, and in our own words if not well."""
    begun, error = time.monotonic(), None
    try:
        call.make()
    except Exception as caught:  # noqa: BLE001  the findings say which are ours
        error = caught
    findings.note(call.name, time.monotonic() - begun, call.seconds, error)


def make_all_sync(subject: Subject) -> Findings:
    """Make all calls at once, and the last one after them."""
    findings = Findings("sync")
    calls = list(public_calls.calls_of(subject))
    with ThreadPoolExecutor(len(calls)) as threads:
        list(threads.map(make_sync, calls, [findings] * len(calls)))
    last = public_calls.last_call_of(subject)
    make_sync(last, findings)
    make_sync(last, findings)
    return findings


async def make_awaited(call: Call, findings: Findings) -> None:
    """Make a call, and await what it returns; the loop is watched beside it."""
    begun, error = time.monotonic(), None
    try:
        result = call.make()
        held = time.monotonic() - begun
        findings.note(f"{call.name}, before it returned,", held, LOOP, None)
        await result_of(result)
    except Exception as caught:  # noqa: BLE001  the findings say which are ours
        error = caught
    findings.note(call.name, time.monotonic() - begun, call.seconds, error)


async def make_all_awaited(subject: Subject) -> Findings:
    """Make the plain calls one by one, then all others at once, each in a task; the last one after them."""
    findings = Findings("aio")
    plain = [call for call in public_calls.calls_of(subject) if call.name.endswith(PLAIN)]
    for call in plain:
        begun = time.monotonic()
        make_sync(call, findings)
        findings.note(f"{call.name}, before it returned,", time.monotonic() - begun, LOOP, None)
    watch = asyncio.create_task(watch_loop(findings))
    awaited = [call for call in public_calls.calls_of(subject) if not call.name.endswith(PLAIN)]
    await asyncio.gather(*(make_awaited(call, findings) for call in awaited))
    last = public_calls.last_call_of(subject)
    await make_awaited(last, findings)
    await make_awaited(last, findings)
    watch.cancel()
    return findings


PLAIN: Final = (".flush", ".invalidate", ".view", ".array", ".map")
"""Calls that are not awaited on either API."""


async def watch_loop(findings: Findings) -> None:
    """See that no task holds the loop."""
    while True:
        begun = time.monotonic()
        await asyncio.sleep(0.01)
        findings.note("a turn of the loop", time.monotonic() - begun, LOOP, None)


@pytest.mark.parametrize(
    ("way", "state"),
    [
        pytest.param(way, state, marks=[NEEDS_TLS] if way == "tls" else [])
        for way, states in WAYS.items()
        for state in states
    ],
)
async def test_every_call_ends_in_time(request: pytest.FixtureRequest, way: str, state: str) -> None:
    found = await try_every_call(request, way, state)
    if found.late:
        again = await try_every_call(request, way, state)
        found.wrong += again.wrong + [text for label, text in found.late.items() if label in again.late]
    assert not found.wrong, "\n".join(found.wrong)


async def try_every_call(request: pytest.FixtureRequest, way: str, state: str) -> Findings:
    """Make all calls of both APIs, and return what went wrong."""
    with staged(request, way, state) as stage:
        sync = await asyncio.to_thread(farpool.connect, stage.url, **stage.options(DEFAULT))
        aio = await farpool.aio.connect(stage.url, **stage.options(DEFAULT))
        subjects = [await make_subject(pool, f"{{}}-{number}".format) for number, pool in enumerate((sync, aio))]
        await asyncio.to_thread(move, stage, ["moved-0", "moved-1"])
        await asyncio.to_thread(stage.break_it)
        found = await asyncio.to_thread(make_all_sync, subjects[0])
        found.add(await make_all_awaited(subjects[1]))
        found.add(await asyncio.to_thread(connect_every_way, stage))
        return found


def connect_every_way(stage: Stage) -> Findings:
    """Connect by both APIs, with the transport named and found; close what is made."""
    findings = Findings("connect")

    def sync(**options: Any) -> None:
        farpool.connect(stage.url, **options).close()

    def awaited(**options: Any) -> None:
        async def connect() -> None:
            async with farpool.aio.connect(stage.url, **options):
                pass

        asyncio.run(connect())

    named = stage.options(TIMEOUT)
    auto = named | {"transport": "auto"}
    calls = [
        Call(f"{function.__name__} {options['transport']}", partial(function, **options), TIMEOUT)
        for function in (sync, awaited)
        for options in (named, auto)
    ]
    with ThreadPoolExecutor(len(calls)) as threads:
        list(threads.map(make_sync, calls, [findings] * len(calls)))
    return findings


# Clocks ---------------------------------------------------------------------------------------------------------

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
