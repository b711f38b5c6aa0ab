"""Lessons row 25: mutual TLS was asked for and the port still open; unauthenticated pickles on open sockets.

Here each port of a server that asks for certificates asks for them, no other host is listened to unasked, and nothing
that crosses a socket is ever unpickled or evaluated.
"""

from __future__ import annotations

import ast
import pickle  # noqa: TID251  what an attacker sends
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.certificates import authority, stranger

import farpool
from farpool.native.tcp_wire import ANSWER_BYTES, pack_hello, unpack_answer
from farpool.protocol.addresses import parse_address
from farpool.protocol.messages import Hello, encode_request

if TYPE_CHECKING:
    from tests.certificates import Certificate

    from farpool.server.embedded import EmbeddedServer

ROOT = Path(farpool.__file__).parent
HELLO = encode_request(1, Hello(protocol=1, client="row 25"))
needs_tls = pytest.mark.skipif(
    not list((ROOT / "native").glob("tls.*.so")), reason="built only where libssl-dev is: apt-get install libssl-dev"
)


# Mutual TLS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mutual() -> Iterator[EmbeddedServer]:
    """A server that asks each client for a certificate."""
    tls = {**authority().server().settings, "client_ca": str(authority().ca)}
    tenants = {"alice": {"certificates": ["alice.example"]}}
    with farpool.serve_embedded(
        capacity="16MiB", transports=["tcp"], tls=tls, authentication="required", tenants=tenants
    ) as served:
        yield served


def answer(address: tuple[str, int], said: bytes, own: Certificate | None, *, tls: bool) -> bytes:
    """Say something over a connection with *own* certificate, or none, or without TLS; return what comes back first."""
    with socket.create_connection(address, timeout=20) as plain, suppress(ssl.SSLError, ConnectionError):
        if not tls:
            plain.sendall(said)
            return plain.recv(4096)
        context = ssl.create_default_context(cafile=str(authority().ca))
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as shaken:
            shaken.sendall(said)
            return shaken.recv(4096)
    return b""


def is_let_in(received: bytes) -> bool:
    """Tell whether it is the answer to a hello that was accepted, of either port."""
    if len(received) == ANSWER_BYTES:
        return bool(unpack_answer(received)["status"] == 0)
    return b"epoch" in received


@needs_tls
@pytest.mark.parametrize("who", ["in clear", "nobody", "a stranger", "alice"])
def test_every_port_asks_for_the_certificate(mutual: EmbeddedServer, who: str) -> None:
    """The control port, and the data port even before one who knows a session's secret."""
    alice = authority().issue("alice.example")
    tls = farpool.Tls(ca=authority().ca, certificate=alice.certificate, key=alice.key)
    own = {"alice": alice, "a stranger": stranger().issue("alice.example")}.get(who)
    with farpool.connect(mutual.tcp_url, transport="tcp", tls=tls) as pool:
        params = pool.allocate(64).attachment.ticket.params
        control = parse_address(mutual.tcp_url)
        said = {
            (control.host, control.port): HELLO,
            (str(params["host"]), int(params["port"])): pack_hello(params["slot"], params["secret"]),
        }
        assert len(said) == 2
        for address, words in said.items():
            received = answer(address, words, own, tls=who != "in clear")
            assert is_let_in(received) == (who == "alice"), received


# Open ports ------------------------------------------------------------------------------------------------------


def test_loopback_unless_told(server: EmbeddedServer) -> None:
    assert parse_address(server.tcp_url).host == "127.0.0.1"
    command = [sys.executable, "-m", "farpool.cli.main", "serve", "--listen", "0.0.0.0:0", "--capacity", "1MiB"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr
    assert refused.stderr.count("\n") == 1


# Pickles ---------------------------------------------------------------------------------------------------------

EVALUATING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml", "code"}
CALLS = {"eval", "exec", "compile", "__import__"}


def words_of(path: Path) -> Iterator[str]:
    """Return the modules that a file imports and the plain functions that it calls."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                yield from (alias.name.partition(".")[0] for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield module.partition(".")[0]
            case ast.Call(func=ast.Name(id=name)):
                yield f"{name}()"
            case _:
                pass


def test_nothing_is_unpickled_or_evaluated() -> None:
    sources = [path for folder in ROOT.iterdir() for path in sorted(folder.glob("**/*.py"))]
    assert len(sources) > 100
    forbidden = EVALUATING | {f"{name}()" for name in CALLS}
    found = {path.name: words for path in sources if (words := forbidden & set(words_of(path)))}
    assert not found
    for path in (ROOT / "native").glob("*.pyx"):
        text = path.read_text()
        assert not [name for name in EVALUATING if f"import {name}\n" in text], path.name


class Bomb:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_at_every_socket_does_nothing(server: EmbeddedServer, tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    with farpool.connect(server.url, transport="tcp") as pool:
        slab = pool.allocate(4096)
        params = slab.attachment.ticket.params
        control = parse_address(server.tcp_url)
        framed = len(bomb).to_bytes(4, "little") + bomb
        for address in ((control.host, control.port), (params["host"], params["port"])):
            for said in (bomb, framed, HELLO + framed):
                answer(address, said + b"\xff" * 64, None, tls=False)
        slab.write(bomb)
        assert slab.read(len(bomb)) == bomb
        assert pool.stat().state == "serving"
    assert not (tmp_path / "exploded").exists()
