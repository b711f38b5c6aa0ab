"""A client that is let in and then lies: requests of the right shape whose ids, lengths, offsets and numbers are wrong.

The one here is of another tenant than those whom it lies about. What it may not have it does not get, whatever it says,
and the server neither fails nor logs an error of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import bounded, connect_to, exchange, messages_in

import farpool
from farpool.client.administration import Administration
from farpool.protocol.addresses import parse_address
from farpool.protocol.framing import encode_frame
from farpool.protocol.messages import ERROR, EVENT, OPERATIONS, REPLY, Hello, encode_request
from farpool.server.embedded import EmbeddedServer

NBYTES = 100_000
HELLO = encode_request(1, Hello(protocol=1, client="a liar"))
TOUCHING = {"open", "attach", "free", "reserve", "commit", "grant", "revoke", "grants", "wait", "watch", "notify"}
"""Operations on a slab that the request names by its id; but ``detach``: of what is not attached nothing is to do."""


class Victim:
    """A tenant with a committed slab, a draft of it, and a slab that is written in place."""

    def __init__(self, pool: farpool.Pool) -> None:
        self.pool = pool
        self.slab = pool.allocate(NBYTES, name="committed", lease="persistent")
        with self.slab.reserve() as first:
            first.write(b"\x11" * NBYTES)
            first.commit()
        self.plain = pool.allocate(NBYTES, name="plain")
        self.plain.write(b"\x22" * NBYTES)
        self.draft = self.slab.reserve()
        self.draft.write(b"\x33" * NBYTES)

    def handles(self) -> list[tuple[int, int]]:
        """Return id and generation of what there is to lie about."""
        return [(each.id, each.generation) for each in (self.slab, self.plain, self.draft)]

    def check(self) -> None:
        """Fail unless all of it is as it was."""
        assert self.slab.read(NBYTES) == b"\x11" * NBYTES
        assert self.plain.read(NBYTES) == b"\x22" * NBYTES
        assert self.draft.read(NBYTES) == b"\x33" * NBYTES
        assert self.slab.grants() == self.plain.grants() == []
        assert {info.name for info in self.pool.slabs()} == {"committed", "plain"}


class Liar:
    """Speaks to the control plane by hand."""

    def __init__(self, server: EmbeddedServer, victim: Victim) -> None:
        self.server = server
        self.victim = victim
        address = parse_address(server.tcp_url)
        self._address = (address.host, address.port)

    def tell(self, messages: list[list[Any]]) -> list[list[Any]]:
        """Say hello, and then *messages*; return what comes back to them."""
        with connect_to(self._address) as connection:
            answers = messages_in(exchange(connection, HELLO, *[encode_frame(message) for message in messages]))
        assert answers[0][0] == REPLY, answers[0]
        return [answer for answer in answers[1:] if answer[0] != EVENT]


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with ExitStack() as undo:
        server = undo.enter_context(farpool.serve_embedded(capacity="64MiB", disconnect_grace=0.2))
        with Administration(server.url, 30.0) as administration:
            administration.add_tenant("victim", None)
        victim = Victim(undo.enter_context(farpool.connect(server.url, tenant="victim", transport="tcp")))
        liar = Liar(server, victim)
        yield liar
        victim.check()
        victim.draft.commit()
        assert victim.slab.read(NBYTES) == b"\x33" * NBYTES
        entries = [json.loads(line) for line in server.log().splitlines()]
        assert not [entry for entry in entries if entry["level"] in ("error", "critical")]


# Requests ----------------------------------------------------------------------------------------------------------

EDGES = [0, 1, 2, 3, 8, 63, 64, 4096, NBYTES - 8, NBYTES, NBYTES + 1]
FAR = [-1, -(2**63), 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
NUMBERS = st.one_of(st.sampled_from(EDGES), st.sampled_from(FAR), st.integers(-(2**63), 2**64 - 1))
WORDS = [
    "",
    "committed",
    "plain",
    "default",
    "victim",
    "nobody",
    "cxl",
    "tcp",
    "rdma",
    "r",
    "rw",
    "session",
    "persistent",
]
TEXTS = st.one_of(st.sampled_from(WORDS), st.text(max_size=20), st.just("x" * 300), st.just("../../etc/passwd"))
TIMES = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e-9, 0.01, 1e300]))


SCALARS: dict[type[Any], st.SearchStrategy[Any]] = {
    msgspec.inspect.IntType: NUMBERS,
    msgspec.inspect.FloatType: TIMES,
    msgspec.inspect.StrType: TEXTS,
    msgspec.inspect.LiteralType: TEXTS,
    msgspec.inspect.BytesType: st.binary(max_size=64),
    msgspec.inspect.BoolType: st.booleans(),
}


def values_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Return values of a type, as the wire has them."""
    match kind:
        case msgspec.inspect.UnionType():
            return st.one_of([values_of(each) for each in kind.types])
        case msgspec.inspect.ListType():
            return st.lists(values_of(kind.item_type), max_size=4)
        case msgspec.inspect.DictType():
            return st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=3)
        case msgspec.inspect.StructType():
            return fields_of(kind)
        case _:
            return SCALARS.get(type(kind), st.none())


def fields_of(kind: msgspec.inspect.StructType) -> st.SearchStrategy[dict[str, Any]]:
    """Return the fields of a message; those that have defaults may be left out."""
    required = {field.encode_name: values_of(field.type) for field in kind.fields if field.required}
    others = {field.encode_name: values_of(field.type) for field in kind.fields if not field.required}
    return st.fixed_dictionaries(required, optional=others)


SHAPES = {name: msgspec.inspect.type_info(cls) for name, cls in OPERATIONS.items() if name not in ("hello", "goodbye")}


@st.composite
def lies(draw: st.DrawFn) -> tuple[str, dict[str, Any], int | None]:
    """Draw a request, and which of the victim's slabs it is to name, if any."""
    operation = draw(st.sampled_from(sorted(SHAPES)))
    shape = SHAPES[operation]
    assert isinstance(shape, msgspec.inspect.StructType)
    return operation, draw(fields_of(shape)), draw(st.sampled_from([None, 0, 1, 2]))


def aimed(fields: dict[str, Any], handle: tuple[int, int]) -> dict[str, Any]:
    """Let a request name a slab by its true id and generation."""
    names = {"id": handle[0], "generation": handle[1]}
    drafts = [{**draft, **names} for draft in fields.get("drafts", ())] or [names]
    return {**fields, **{name: value for name, value in names.items() if name in fields}} | (
        {"drafts": drafts} if "drafts" in fields else {}
    )


@bounded(150)
@given(told=st.lists(lies(), min_size=1, max_size=10))
def test_no_lie_gets_or_harms_what_is_anothers(liar: Liar, told: list[tuple[str, dict[str, Any], int | None]]) -> None:
    handles = liar.victim.handles()
    messages: list[list[Any]] = []
    about_victim: set[int] = set()
    for number, (operation, fields, which) in enumerate(told, 2):
        said = fields if which is None else aimed(fields, handles[which])
        if which is not None and operation in TOUCHING and said != fields:
            about_victim.add(number)
        messages.append([0, number, operation, said])
    for kind, number, *rest in liar.tell(messages):
        assert kind in (REPLY, ERROR)
        if kind == ERROR:
            assert rest[0] in farpool.FarpoolError.kinds, rest
            assert "\x11" * 8 not in str(rest)
        else:
            assert number not in about_victim, (messages[number - 2], rest)
    liar.victim.check()


@pytest.mark.parametrize("operation", sorted(TOUCHING))
def test_the_true_names_of_anothers_slabs_are_of_no_use(liar: Liar, operation: str) -> None:
    """All else is what a client of the victim's own would say."""
    honest: dict[str, Any] = {
        "transport": "tcp",
        "mode": "r",
        "tenant": "default",
        "detached": "",
        "offset": 0,
        "seconds": 0.01,
        "expected": 1,
        "copy": True,
    }
    known = {field for field in OPERATIONS[operation].__struct_fields__ if field in honest}
    for id_, generation in liar.victim.handles():
        end = {"id": id_, "generation": generation}
        fields = {"drafts": [end]} if operation == "commit" else {**end, **{name: honest[name] for name in known}}
        (answer,) = liar.tell([[0, 2, operation, fields]])
        assert answer[0] == ERROR, answer
        assert answer[2] in ("SlabNotFound", "StaleSlab", "PermissionDenied"), answer
    liar.victim.check()
