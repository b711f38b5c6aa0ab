"""What the audit log has of those who were refused before, or beside, any request on the control plane."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Certificate, authority, stranger
from tests.conftest import settle

import farpool
from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, STATUSES, pack_hello, pack_request, unpack_answer
from farpool.protocol.addresses import parse_address
from farpool.protocol.errors import InvalidArgument
from farpool.protocol.messages import (
    Allocate,
    Attached,
    Done,
    Free,
    Grant,
    Open,
    SlabInfo,
    TenantAdd,
    TenantList,
    TenantListing,
    encode_request,
)
from farpool.server.embedded import EmbeddedServer, serve_embedded
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest

Connect = Callable[..., Any]


@pytest.fixture
def server(audit: Path) -> Iterator[EmbeddedServer]:
    with serve_embedded(capacity="64MiB", audit_log=str(audit)) as running:
        yield running


@pytest.fixture
def slab(server: EmbeddedServer, connect: Connect) -> SlabInfo:
    """One that its owner lets ``reader`` read."""
    for name in ("owner", "reader"):
        connect(server.url).ask(TenantAdd(tenant=name), Done)
    owner = connect(server.tcp_url, tenant="owner")
    slab = owner.ask(Allocate(nbytes=4096, name="weights", lease="persistent"), Attached).slab
    owner.ask(Grant(id=slab.id, generation=slab.generation, tenant="reader", mode="r"), Done)
    assert isinstance(slab, SlabInfo)
    return slab


def refusals(audit: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    return [line for line in lines if line["outcome"] == "refused"]


def refused(audit: Path, count: int = 1) -> list[dict[str, Any]]:
    """Return the refusals, once there are *count*."""
    assert not settle(lambda: set() if len(refusals(audit)) >= count else {"too few"}, set(), 20.0)
    found = refusals(audit)
    assert len(found) == count, found
    return found


def name_of(connection: socket.socket) -> str:
    return "{}:{}".format(*connection.getsockname())


def answer_of(connection: socket.socket, request: bytes) -> str:
    """Send to the data port, and return the status of the answer."""
    connection.sendall(request)
    return STATUSES[unpack_answer(connection.recv(ANSWER_BYTES, socket.MSG_WAITALL))["status"]]


def describe(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line.get(key) for key in ("transport", "act", "error", "tenant", "session", "object"))


# The tcp data port --------------------------------------------------------------------------------------------------


def test_a_wrong_secret_at_the_data_port(server: EmbeddedServer, connect: Connect, audit: Path, slab: SlabInfo) -> None:
    reader = connect(server.tcp_url, tenant="reader")
    params = reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached).params
    wrong = bytes(reversed(params["secret"]))
    with socket.create_connection((params["host"], params["port"]), 20) as thief:
        assert answer_of(thief, pack_hello(params["slot"], wrong)) == "refused"
        (line,) = refused(audit)
        assert describe(line) == ("tcp", "hello", "AuthenticationFailed", None, None, {})
        assert (line["address"], line["uid"], line["administrator"]) == (name_of(thief), None, False)
    assert wrong.hex() not in audit.read_text()


def test_a_write_to_what_is_read_only(server: EmbeddedServer, connect: Connect, audit: Path, slab: SlabInfo) -> None:
    reader = connect(server.tcp_url, tenant="reader")
    params = reader.ask(Open(id=slab.id, mode="r", transport="tcp"), Attached).params
    names = {"handle": params["handle"], "generation": slab.generation}
    for number in (1, 2):
        with socket.create_connection((params["host"], params["port"]), 20) as wire:
            assert answer_of(wire, pack_hello(params["slot"], params["secret"])) == "ok"
            for _ in range(3):  # the first try of each connection is noted
                assert answer_of(wire, pack_request(OPERATIONS["store"], **names)) == "read only"
            assert answer_of(wire, pack_request(OPERATIONS["write"], **names, length=8) + bytes(8)) == "read only"
            line = refused(audit, number)[-1]
            expected = ("tcp", "write", "ReadOnly", "reader", reader.welcome.session, {"slab": slab.id})
            assert describe(line) == expected
            assert line["address"] == name_of(wire)


# The socket of cxl's descriptors ------------------------------------------------------------------------------------


def fetch(connection: socket.socket, request: DescriptorRequest) -> int:
    connection.send(request.encode())
    packet, received, _, _ = socket.recv_fds(connection, descriptors.ANSWER_BYTES, 1)
    for fd in received:
        os.close(fd)
    return DescriptorAnswer.decode(packet).status


@pytest.fixture
def door(server: EmbeddedServer) -> Iterator[socket.socket]:
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as door:
        door.settimeout(20)
        door.connect(f"{server.url.removeprefix('unix://')}.cxl")
        yield door


def test_a_wrong_secret_and_a_wider_mode_at_the_descriptors_socket(
    server: EmbeddedServer, connect: Connect, audit: Path, slab: SlabInfo, door: socket.socket
) -> None:
    reader = connect(server.tcp_url, tenant="reader")
    params = reader.ask(Open(id=slab.id, mode="r", transport="cxl"), Attached).params
    assert fetch(door, DescriptorRequest(params["session"], bytes(32))) == descriptors.REFUSED
    own = (params["session"], params["secret"], slab.id, slab.generation)
    assert fetch(door, DescriptorRequest(*own)) == descriptors.OK
    assert fetch(door, DescriptorRequest(*own, writable=True)) == descriptors.STALE
    stranger, writer = refused(audit, 2)
    assert describe(stranger) == ("cxl", "descriptor", "AuthenticationFailed", None, None, {})
    expected = ("cxl", "descriptor", "ReadOnly", "reader", reader.welcome.session, {"slab": slab.id})
    assert describe(writer) == expected
    assert {(line["pid"], line["uid"]) for line in (stranger, writer)} == {(os.getpid(), os.getuid())}


def test_a_flood_there_is_counted(server: EmbeddedServer, connect: Connect, audit: Path, door: socket.socket) -> None:
    for _ in range(1000):
        assert fetch(door, DescriptorRequest(1 << 40, bytes(32))) == descriptors.REFUSED
    connect(server.url).ask(TenantAdd(tenant="alice"), Done)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert len(lines) < 1001
    assert sum(line.get("suppressed", 0) for line in lines) + len(lines) == 1001


# The control plane --------------------------------------------------------------------------------------------------


def test_the_last_words_of_a_client(server: EmbeddedServer, connect: Connect, audit: Path, slab: SlabInfo) -> None:
    """A refusal is one although nobody is there any more to hear it."""
    operator, reader = connect(server.url), connect(server.tcp_url, tenant="reader")
    free = Free(id=slab.id, generation=slab.generation)
    reader.socket.sendall(b"".join(encode_request(number, free) for number in range(1, 501)))
    reader.socket.close()  # the connection breaks as the first is answered

    def unheard() -> set[str]:
        operator.ask(TenantListing(), TenantList)  # its line has the count of those before
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        heard = sum(line.get("suppressed", 0) + (line["outcome"] == "refused") for line in lines)
        return set() if heard == 500 else {"some"}

    assert not settle(unheard, set(), 20.0)
    assert describe(refusals(audit)[0])[1:5] == ("free", "PermissionDenied", "reader", reader.welcome.session)


def test_a_grant_that_failed(server: EmbeddedServer, connect: Connect, audit: Path, slab: SlabInfo) -> None:
    owner = connect(server.tcp_url, tenant="owner")
    with pytest.raises(InvalidArgument):
        owner.ask(Grant(id=slab.id, generation=slab.generation, tenant="nobody"), Done)
    line = json.loads(audit.read_text().splitlines()[-1])
    assert (line["act"], line["outcome"], line["error"]) == ("grant", "failed", "InvalidArgument")


# TLS ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mutual(audit: Path) -> Iterator[EmbeddedServer]:
    pytest.importorskip("farpool.native.tls", reason="built only where libssl-dev is: apt-get install libssl-dev")
    files = {**authority().server().settings, "client_ca": str(authority().ca)}
    settings: dict[str, Any] = {"tls": files, "audit_log": str(audit), "session_timeout": 60}
    with serve_embedded(capacity="16MiB", transports=["tcp"], **settings) as running:
        yield running


def encrypted(host: str, port: int, own: Certificate | None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(authority().ca))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context.wrap_socket(socket.create_connection((host, port), 20), server_hostname="localhost")


@pytest.mark.parametrize(
    "issue",
    [
        lambda: None,
        lambda: stranger().issue("alice.example"),
        lambda: authority().issue("alice.example", days=(-30, -1)),
    ],
    ids=["none", "of a stranger", "expired"],
)
def test_client_certificates(
    mutual: EmbeddedServer, connect: Connect, audit: Path, issue: Callable[[], Certificate | None]
) -> None:
    control = parse_address(mutual.tcp_url)
    local = connect(mutual.url)
    data = local.ask(Allocate(nbytes=64, transport="tcp"), Attached).params
    for number, (port, transport) in enumerate([(control.port, None), (data["port"], "tcp")], 1):
        with suppress(OSError), encrypted("127.0.0.1", port, issue()) as wire:  # by TLS 1.3 the client is told later
            wire.recv(1)
        line = refused(audit, number)[-1]
        assert describe(line) == (transport, "handshake", "AuthenticationFailed", None, None, {})
        assert "the client's certificate was refused: " in line["reason"]
        assert line["address"].startswith("127.0.0.1:")


def test_a_data_connection_in_clear_for_an_encrypted_session(mutual: EmbeddedServer, audit: Path) -> None:
    own = authority().issue("alice.example")
    tls = farpool.Tls(ca=authority().ca, certificate=own.certificate, key=own.key)
    with farpool.connect(mutual.tcp_url, transport="tcp", tls=tls) as pool:
        params = pool.allocate(64).attachment.ticket.params
        with socket.create_connection((params["host"], params["port"]), 20) as clear:
            assert answer_of(clear, pack_hello(params["slot"], params["secret"])) == "refused"
            (line,) = refused(audit)
            assert describe(line) == ("tcp", "hello", "AuthenticationFailed", "default", pool.session_id, {})
            assert line["address"] == name_of(clear)
