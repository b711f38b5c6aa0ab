"""What strangers may say before they are known: no sequence of it opens a session without a tenant's own token."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import bounded

import farpool
from farpool.client.administration import Administration
from farpool.protocol.addresses import parse_address
from farpool.protocol.credentials import exchange_of, format_token, proof_of, verifier_of
from farpool.protocol.errors import AuthenticationFailed, FarpoolError, PermissionDenied, ProtocolError
from farpool.protocol.framing import FrameDecoder, decode_payload
from farpool.protocol.messages import REPLY, Challenge, Hello, ResumeKey, encode_request
from farpool.server.authentication import Authentication, Exchange
from farpool.server.catalog import Catalog
from farpool.server.embedded import EmbeddedServer
from farpool.server.peers import Peer
from farpool.server.settings import TenantSettings
from farpool.server.tenants import Tenants

TOKENS = {"alice": bytes(range(32)), "bob": bytes(range(32, 64))}
STRANGER = Peer("192.0.2.1:7")

tenants = st.sampled_from(["alice", "bob", "default", "closed", "nobody", "", "a" * 300, "\x00"])
nonces = st.one_of(st.just(bytes(32)), st.binary(min_size=32, max_size=32), st.binary(max_size=70))
odd_proofs = st.one_of(st.just(b""), st.binary(min_size=32, max_size=32), st.binary(max_size=70))
challenges = st.builds(Challenge, tenant=tenants, nonce=nonces)
resumes = st.builds(ResumeKey, session=st.integers(0, 9), secret=st.binary(min_size=32, max_size=32))
hellos = st.tuples(st.none() | tenants, st.sampled_from(["odd", "alice", "bob"]), odd_proofs)


@pytest.fixture(scope="module")
def known() -> Iterator[Tenants]:
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(f"{Path(folder)}/catalog.sqlite", durable=False)
        made = Tenants(catalog, {"closed": TenantSettings()})
        for name, token in TOKENS.items():
            made.add(name, verifier_of(token, name))
        yield made
        catalog.close()


@bounded(300)
@given(said=st.lists(st.one_of(challenges, hellos), max_size=8), required=st.booleans())
def test_a_tenant_is_its_tokens_alone(known: Tenants, said: list[Any], required: bool) -> None:
    authentication = Authentication(known, lambda: required)
    exchange: Exchange | None = None
    for one in said:
        if isinstance(one, Challenge):
            try:
                exchange, _ = authentication.challenge(one)
            except ProtocolError:
                assert len(one.nonce) != 32
            continue
        claimed, token_of, odd = one
        proof = odd
        if token_of != "odd" and exchange is not None:
            proof = proof_of(TOKENS[token_of], exchange.tenant, exchange.message)
        right = exchange is not None and token_of == exchange.tenant and claimed in (None, exchange.tenant)
        anybody = not required and exchange is None and not proof and claimed in (None, "default")
        hello = Hello(protocol=1, client="x", tenant=claimed, proof=proof)
        try:
            identity = authentication.identify(STRANGER, hello, exchange)
        except (AuthenticationFailed, PermissionDenied):
            assert not right
            assert not anybody
        else:
            assert right or anybody
            assert identity.tenant == (exchange.tenant if exchange is not None else "default")
            assert bool(identity.signature) is right
        exchange = None


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(authentication="required", capacity="16MiB", transports=["tcp"]) as running:
        with Administration(running.url, 30.0) as administration:
            for name, token in TOKENS.items():
                administration.add_tenant(name, token)
        yield running


@bounded(40)
@given(
    said=st.lists(
        st.one_of(
            challenges,
            st.builds(Hello, protocol=st.just(1), client=st.just("x"), tenant=tenants, proof=odd_proofs),
            st.builds(Hello, protocol=st.just(1), client=st.just("x"), resume=resumes),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_server_lets_in_nobody_by_chance(server: EmbeddedServer, said: list[Any]) -> None:
    answers = talk(server.tcp_url, said)
    assert not [fields for fields in answers if "session" in fields], "a session was opened"
    with farpool.connect(server.tcp_url, tenant="alice", token=format_token(TOKENS["alice"])) as pool:
        assert pool.tenant == "alice"


def talk(url: str, said: list[Any]) -> list[dict[str, Any]]:
    """Say it over one connection, and return the fields of the replies that came before it ended."""
    address = parse_address(url)
    decoder, replies = FrameDecoder(), list[dict[str, Any]]()
    with socket.create_connection((address.host, address.port), 20) as line:
        try:
            for number, request in enumerate(said, 1):
                line.sendall(encode_request(number, request))
            line.shutdown(socket.SHUT_WR)
            while data := line.recv(1 << 16):
                messages = [decode_payload(payload) for payload in decoder.feed(data)]
                replies += [message[2] for message in messages if message[0] == REPLY]
        except OSError:
            pass  # it ended in the middle of what was said
    return replies


def test_the_oracle_would_see_a_proof(known: Tenants) -> None:
    authentication = Authentication(known, lambda: True)
    exchange, challenged = authentication.challenge(Challenge(tenant="alice", nonce=bytes(32)))
    assert exchange.message == exchange_of("alice", bytes(32), challenged.nonce)
    hello = Hello(protocol=1, client="x", proof=proof_of(TOKENS["alice"], "alice", exchange.message))
    assert authentication.identify(STRANGER, hello, exchange).tenant == "alice"
    with pytest.raises(FarpoolError):
        authentication.identify(STRANGER, hello, None)
