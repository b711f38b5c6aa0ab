"""Who may take over, and in which order: the messages of a takeover."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from farpool.protocol.errors import FarpoolError, InvalidArgument, PermissionDenied, ProtocolError
from farpool.protocol.messages import Inheritance, LetGo, ServerStat, Stat, Takeover
from farpool.protocol.takeover_messages import TAKEOVER_VERSION
from farpool.server.embedded import EmbeddedServer, serve_embedded
from farpool.server.schema import SCHEMA_VERSION

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="1MiB") as running:
        yield running


def takeover(server: EmbeddedServer, **changes: Any) -> Takeover:
    fields: dict[str, Any] = {
        "version": TAKEOVER_VERSION,
        "catalog": SCHEMA_VERSION,
        "arena": os.path.realpath(server.arena),
    }
    return Takeover(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "error", "hint"),
    [
        ({"version": TAKEOVER_VERSION + 1}, ProtocolError, "takes over in version"),
        ({"catalog": SCHEMA_VERSION - 1}, ProtocolError, "a newer one"),
        ({"arena": "/elsewhere"}, InvalidArgument, "--arena"),
    ],
)
def test_what_does_not_fit_is_refused(
    server: EmbeddedServer, connect: Connect, changes: dict[str, Any], error: type[FarpoolError], hint: str
) -> None:
    client = connect(server.url)
    with pytest.raises(error, match=hint):
        client.ask(takeover(server, **changes), Inheritance)
    assert client.ask(Stat(), ServerStat).pid == server.pid


def test_over_tcp_nobody_is_an_administrator(server: EmbeddedServer, connect: Connect) -> None:
    client = connect(server.tcp_url)
    with pytest.raises(PermissionDenied, match="administrators"):
        client.ask(takeover(server), Inheritance)


def test_nobody_lets_go_who_was_not_asked(server: EmbeddedServer, connect: Connect) -> None:
    asking, other = connect(server.url), connect(server.url)
    assert asking.ask(takeover(server), Inheritance).descriptors[0] == "lock"
    with pytest.raises(ProtocolError, match="let_go"):
        other.ask(LetGo(), Inheritance)
    assert other.ask(Stat(), ServerStat).state == "serving"


def test_a_successor_that_leaves_before_it_is_one_changes_nothing(server: EmbeddedServer, connect: Connect) -> None:
    asking = connect(server.url)
    asking.ask(takeover(server), Inheritance)
    asking.close()
    assert connect(server.tcp_url).ask(Stat(), ServerStat).state == "serving"
    assert connect(server.url).ask(Stat(), ServerStat).pid == server.pid
