"""Every public call, as a table: what ``test_never_hangs`` makes against a server that does not answer.

The classes say what is public, and not this file: a test there fails if one of their methods is in no table here.
"""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import farpool
import farpool.aio
from farpool.client.session import GOODBYE_SECONDS

__all__ = [
    "ASK_NOBODY",
    "CLASSES",
    "DEFAULT",
    "LOOP",
    "NBYTES",
    "SPARE_DRAFTS",
    "SPARE_SLABS",
    "TIMEOUT",
    "Call",
    "Subject",
    "calls_of",
    "last_call_of",
    "methods_of",
    "tables",
]

TIMEOUT: Final = 0.5
"""Seconds that calls which take a timeout are given."""

DEFAULT: Final = 1.6
"""Seconds that the pool gives the others. More than a call of a second may take, so that one which keeps to it, and
should keep to less, is found."""

LOOP: Final = 0.25
"""Seconds that a call of ``farpool.aio`` may hold the event loop for, whatever its deadline."""

NBYTES: Final = 4096
OFFSETS: Final = array("q", [0, 64])
CLASSES: Final = {
    "Pool": (farpool.Pool, farpool.aio.Pool),
    "Slab": (farpool.Slab, farpool.aio.Slab),
    "Draft": (farpool.Draft, farpool.aio.Draft),
}


@dataclass
class Subject:
    """What the calls are made on, of either API. What a call ends is its own."""

    pool: Any
    slab: Any
    moved: Any
    """A slab whose memory another session has replaced, which this one has not heard of yet: every use of it asks."""
    draft: Any
    spare: dict[str, Any] = field(default_factory=dict[str, Any])
    """A slab or a draft for each call that ends one, by the call's name."""


class Call(NamedTuple):
    """One call: its name, what makes it, and the seconds that it may take."""

    name: str
    make: Callable[[], object]
    seconds: float


Entry = tuple[Callable[[Any, Subject], object], float]
Table = dict[str, Entry]


def timed(make: Callable[[Any, Subject], object]) -> Entry:
    """Return the entry of a call that is given ``TIMEOUT``."""
    return make, TIMEOUT


DATA: Final[Table] = {
    "read": timed(lambda on, _: on.read(64, timeout=TIMEOUT)),
    "read_into": timed(lambda on, _: on.read_into(bytearray(64), timeout=TIMEOUT)),
    "readv": timed(lambda on, _: on.readv([(0, bytearray(64)), (64, bytearray(64))], timeout=TIMEOUT)),
    "write": timed(lambda on, _: on.write(b"x" * 64, timeout=TIMEOUT)),
    "writev": timed(lambda on, _: on.writev([(0, b"x"), (64, b"x")], timeout=TIMEOUT)),
    "gather": timed(lambda on, _: on.gather(OFFSETS, 64, bytearray(128), timeout=TIMEOUT)),
    "scatter": timed(lambda on, _: on.scatter(OFFSETS, 64, bytes(128), timeout=TIMEOUT)),
    "load": timed(lambda on, _: on.load(0, timeout=TIMEOUT)),
    "store": timed(lambda on, _: on.store(0, 1, timeout=TIMEOUT)),
    "fetch_add": timed(lambda on, _: on.fetch_add(0, 1, timeout=TIMEOUT)),
    "compare_swap": timed(lambda on, _: on.compare_swap(0, 0, 1, timeout=TIMEOUT)),
    "flush": (lambda on, _: on.flush(), DEFAULT),
    "invalidate": (lambda on, _: on.invalidate(), DEFAULT),
    "view": (lambda on, _: on.view(0, 64), DEFAULT),
    "array": (lambda on, _: on.array("u1", 64), DEFAULT),
    "map": (lambda on, _: on.map(), DEFAULT),
}
POOL: Final[Table] = {
    "allocate": timed(lambda pool, _: pool.allocate(64, timeout=TIMEOUT)),
    "allocate_many": timed(lambda pool, _: pool.allocate_many([64, 64], timeout=TIMEOUT)),
    "open": timed(lambda pool, on: pool.open(on.slab.id, timeout=TIMEOUT)),
    "open exclusive": timed(lambda pool, on: pool.open(on.slab.id, exclusive=True, timeout=TIMEOUT)),
    "free_many": timed(lambda pool, on: pool.free_many([on.spare["free_many"]], timeout=TIMEOUT)),
    "stat": timed(lambda pool, _: pool.stat(timeout=TIMEOUT)),
    "slabs": timed(lambda pool, _: pool.slabs(timeout=TIMEOUT)),
    "reserve": timed(lambda pool, on: pool.reserve(on.slab, timeout=TIMEOUT)),
    "commit": timed(lambda pool, on: pool.commit([on.spare["Pool.commit"]], timeout=TIMEOUT)),
    "release_host": timed(lambda pool, _: pool.release_host("nowhere", timeout=TIMEOUT)),
}
SLAB: Final[Table] = {
    **DATA,
    "wait": timed(lambda slab, _: slab.wait(128, 0, timeout=TIMEOUT)),
    "notify": timed(lambda slab, _: slab.notify(128, timeout=TIMEOUT)),
    "grant": timed(lambda slab, _: slab.grant(tenant="nobody", mode="r", timeout=TIMEOUT)),
    "revoke": timed(lambda slab, _: slab.revoke(tenant="nobody", timeout=TIMEOUT)),
    "grants": timed(lambda slab, _: slab.grants(timeout=TIMEOUT)),
    "reserve": timed(lambda slab, _: slab.reserve(timeout=TIMEOUT)),
    "reserve copy": timed(lambda slab, _: slab.reserve(copy=True, timeout=TIMEOUT)),
    "free": timed(lambda _, on: on.spare["free"].free(timeout=TIMEOUT)),
    "close": (lambda _, on: on.spare["Slab.close"].close(), GOODBYE_SECONDS),
}
DRAFT: Final[Table] = {
    **DATA,
    "commit": timed(lambda _, on: on.spare["Draft.commit"].commit(timeout=TIMEOUT)),
    "close": (lambda _, on: on.spare["Draft.close"].close(), GOODBYE_SECONDS),
}
LAST: Final[Table] = {"close": (lambda pool, _: pool.close(), GOODBYE_SECONDS)}
"""What ends all the others."""

SPARE_SLABS: Final = ("free_many", "free", "Slab.close")
SPARE_DRAFTS: Final = ("Pool.commit", "Draft.commit", "Draft.close")

ASK_NOBODY: Final = {
    "Pool.commit_drafts": "what commit calls, with the deadline that it makes; not for applications",
    "Pool.awaitable": "aio: makes the twin of a region, which connects when it is first used",
    "Pool.ask": "aio: what grant, revoke and grants of a slab await",
    "Pool.goodbye_deadline": "a fact",
    "Pool.discard": "aio: what close of a draft awaits",
    "Pool.flush": "aio: what close of a slab calls; it waits in a thread of the pool's",
    "Pool.free": "aio: what free of a slab awaits",
    "Pool.notify": "aio: what notify of a slab awaits",
    "Pool.renew": "aio: what the data methods of a slab await whose memory was replaced",
    "Pool.wait": "aio: what wait of a slab awaits",
    "Slab.versions": "a fact",
    "Draft.versions": "a fact",
    "Draft.base": "a fact",
    "Draft.committed": "a fact",
    "Draft.tally": "a fact",
    "Draft.withdraw": "what commit calls first: it closes the region, and the server is told by the commit",
    "Draft.discard_now": "what close calls, with the deadline that it makes; not for applications",
}
"""Public names that are not in a table, and why no server can keep one from its end, or which call of it can."""


def tables() -> dict[str, Table]:
    """Return the table of each class."""
    return {"Pool": {**POOL, **LAST}, "Slab": SLAB, "Draft": DRAFT}


def methods_of(kind: type[object]) -> set[str]:
    """Return the public methods of a class, and the slots, which may hold native ones."""
    return {
        name
        for name, value in inspect.getmembers(kind)
        if not name.startswith("_")
        and not isinstance(value, property)
        and (callable(value) or inspect.isdatadescriptor(value))
    }


def calls_of(subject: Subject) -> Iterator[Call]:
    """Return every call but the last: on the pool, the slab, the slab that has moved, and the draft."""
    for label, on, table in (
        ("pool", subject.pool, POOL),
        ("slab", subject.slab, SLAB),
        ("moved slab", subject.moved, {name: SLAB[name] for name in SLAB if name not in ("free", "close")}),
        ("draft", subject.draft, DRAFT),
    ):
        for name, (make, seconds) in table.items():
            yield Call(f"{label}.{name}", _bound(make, on, subject), seconds)


def last_call_of(subject: Subject) -> Call:
    """Return the end of the pool."""
    make, seconds = LAST["close"]
    return Call("pool.close", _bound(make, subject.pool, subject), seconds)


def _bound(make: Callable[[Any, Subject], object], on: object, subject: Subject) -> Callable[[], object]:
    return lambda: make(on, subject)
