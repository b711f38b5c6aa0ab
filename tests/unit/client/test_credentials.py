"""Where a client's tenant and token come from, and that the token stays with it."""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path

import msgspec
import pytest
from tests.unit.client.scripted_server import WITHIN, Peer, ScriptedServer

from farpool.client.credentials import Credentials, find_credentials
from farpool.client.session import Session
from farpool.protocol.addresses import Address
from farpool.protocol.credentials import exchange_of, format_token, proof_of, signature_of, verifier_of
from farpool.protocol.errors import AuthenticationFailed, InvalidArgument, ServerLost
from farpool.protocol.messages import Challenge, Challenged, Hello, Request, ServerStat, Stat

SECRET = bytes(range(100, 132))
TOKEN = format_token(SECRET)
NONCE = bytes(range(32))
ALICE = Credentials("alice", SECRET)


def holds(credentials: Credentials, tenant: str | None, token: bytes | None) -> bool:
    proving = credentials.prove()
    same = (proving is None) is (token is None)
    if proving is not None and token is not None:
        exchange = exchange_of(tenant or "default", proving.challenge.nonce, NONCE)
        same = proving.answer(Challenged(nonce=NONCE)) == proof_of(token, tenant or "default", exchange)
    return same and credentials.tenant == tenant


def test_arguments_come_first_then_the_environment_then_the_file(tmp_path: Path) -> None:
    other, third = secrets.token_bytes(32), secrets.token_bytes(32)
    file = tmp_path / "token"
    file.write_text(f"{format_token(third)}\n")
    everything = {
        "FARPOOL_TENANT": "bob",
        "FARPOOL_TOKEN": format_token(other),
        "FARPOOL_TOKEN_FILE": str(file),
    }
    assert holds(find_credentials("alice", TOKEN, everything), "alice", SECRET)
    assert holds(find_credentials(None, None, everything), "bob", other)
    assert holds(find_credentials(None, None, {**everything, "FARPOOL_TOKEN": ""}), "bob", third)
    assert holds(find_credentials("alice", None, {}), "alice", None)
    assert holds(find_credentials(None, TOKEN, {}), None, SECRET)
    assert holds(find_credentials(None, None, {"FARPOOL_TENANT": ""}), None, None)


@pytest.mark.parametrize("wrong", ["", "secret-but-none-of-ours", TOKEN[:-1], TOKEN + "x", TOKEN.upper()])
def test_what_is_no_token_is_refused_and_not_repeated(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(wrong)
    ways: list[tuple[str | None, dict[str, str]]] = [
        (wrong, {}),
        (None, {"FARPOOL_TOKEN": wrong or "x"}),
        (None, {"FARPOOL_TOKEN_FILE": str(file)}),
    ]
    for token, environment in ways:
        with pytest.raises(InvalidArgument, match="51 characters") as caught:
            find_credentials("alice", token, environment)
        assert not wrong or wrong not in str(caught.value)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InvalidArgument, match=re.escape(str(path))):
            find_credentials(None, None, {"FARPOOL_TOKEN_FILE": str(path)})
    with pytest.raises(InvalidArgument, match="a tenant is a name"):
        find_credentials(5)  # type: ignore[arg-type]


def test_neither_repr_shows_the_token() -> None:
    proving = ALICE.prove()
    assert repr(ALICE) == "<Credentials of tenant 'alice', with a token>"
    for text in (repr(ALICE), repr(proving), str(ALICE)):
        assert TOKEN not in text
        assert repr(SECRET) not in text


# Against a server that the test scripts -----------------------------------------------------------------------------


class Authority:
    """Answers challenges and hellos of one tenant as a server does, or as an impostor would."""

    def __init__(self, server: ScriptedServer, verifier: bytes) -> None:
        self.verifier = verifier
        self.exchange = b""
        self._server = server
        server.rules[Challenge] = self.challenge
        server.rules[Hello] = self.hello

    def challenge(self, peer: Peer, request_id: int, request: Request) -> None:
        assert isinstance(request, Challenge)
        self.exchange = exchange_of(request.tenant, request.nonce, NONCE)
        peer.reply(request_id, Challenged(nonce=NONCE))

    def hello(self, peer: Peer, request_id: int, request: Request) -> None:
        assert isinstance(request, Hello)
        welcome = self._server.welcome(peer, request)
        signature = b"" if request.resume else signature_of(self.verifier, self.exchange)
        peer.reply(request_id, msgspec.structs.replace(welcome, signature=signature))


def test_the_token_is_proved_and_never_sent(server: ScriptedServer) -> None:
    authority = Authority(server, verifier_of(SECRET, "alice"))
    session = Session(Address(path=str(server.path)), ALICE)
    session.open(time.monotonic() + WITHIN)
    (hello,) = server.seen(Hello)
    assert hello.tenant == "alice"
    assert hello.proof == proof_of(SECRET, "alice", authority.exchange)
    for part in (SECRET, TOKEN.encode(), authority.verifier[:32], authority.verifier[32:]):
        assert part not in repr(server.requests).encode()
        assert repr(part) not in repr(server.requests)
    session.close()


def test_a_session_that_goes_on_needs_no_token(server: ScriptedServer) -> None:
    Authority(server, verifier_of(SECRET, "alice"))
    session = Session(Address(path=str(server.path)), ALICE)
    session.open(time.monotonic() + WITHIN)
    server.cut_once(Stat)
    session.call(Stat(), ServerStat, time.monotonic() + WITHIN)
    assert len(server.seen(Challenge)) == 1
    assert server.seen(Hello, 2)[1].resume is not None
    session.close()


@pytest.mark.parametrize(
    "verifier", [verifier_of(NONCE, "alice"), bytes(64), verifier_of(SECRET, "bob")], ids=["token", "none", "tenant"]
)
def test_a_server_that_does_not_know_the_token_is_left(server: ScriptedServer, verifier: bytes) -> None:
    Authority(server, verifier)
    session = Session(Address(path=str(server.path)), ALICE)
    with pytest.raises(AuthenticationFailed, match=r"does not know the token of tenant .alice."):
        session.open(time.monotonic() + WITHIN)
    assert not session.is_connected()
    session.close()


def test_a_server_without_signatures_is_none_that_knows_the_token(server: ScriptedServer) -> None:
    Authority(server, bytes(64))
    del server.rules[Hello]
    session = Session(Address(path=str(server.path)), ALICE)
    with pytest.raises(AuthenticationFailed):
        session.open(time.monotonic() + WITHIN)
    session.close()


def test_a_server_that_ends_in_the_exchange_is_lost(server: ScriptedServer) -> None:
    server.cut_once(Challenge)
    session = Session(Address(path=str(server.path)), ALICE)
    with pytest.raises(ServerLost):
        session.open(time.monotonic() + WITHIN)
    session.close()
