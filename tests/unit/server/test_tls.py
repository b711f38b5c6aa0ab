"""TLS as clients and operators meet it: certificates that are accepted or not, each with an error of one line."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Certificate, authority, stranger

import farpool
from farpool.cli.main import main
from farpool.client.session import Session
from farpool.protocol.addresses import parse_address
from farpool.server.embedded import EmbeddedServer, serve_embedded

pytest.importorskip("farpool.native.tls", reason="built only where libssl-dev is: apt-get install libssl-dev")

WITHIN = 20.0
"""Seconds in which a server has to do what it must do; only a failure takes so long."""

TRUST = farpool.Tls(ca=authority().ca)


def serving(certificate: Certificate | None = None, **settings: Any) -> Any:
    """Return an embedded server that shows *certificate*; *settings* may add to what ``tls`` says."""
    shown = (certificate or authority().server()).settings
    return serve_embedded(capacity="16MiB", transports=["tcp"], tls={**shown, **settings.pop("tls", {})}, **settings)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def mutual() -> Iterator[EmbeddedServer]:
    """A server that lets in whoever has a certificate, with a tenant for one of the names."""
    with serving(
        tls={"client_ca": str(authority().ca)},
        authentication="required",
        tenants={"alice": {"certificates": ["alice.example"]}, "bob": {"certificates": ["Bob"]}},
    ) as served:
        yield served


def connect_sync(url: str, tls: farpool.Tls | None) -> str:
    with farpool.connect(url, transport="tcp", tls=tls, timeout=WITHIN) as pool:
        slab = pool.allocate(64)
        slab.write(b"by TLS")
        assert slab.read(6) == b"by TLS"
        return pool.tenant


def connect_awaited(url: str, tls: farpool.Tls | None) -> str:
    async def run() -> str:
        async with farpool.aio.connect(url, transport="tcp", tls=tls, timeout=WITHIN) as pool:
            slab = await pool.allocate(64)
            await slab.write(b"by TLS")
            assert await slab.read(6) == b"by TLS"
            return pool.tenant

    return asyncio.run(run())


Connect = Callable[[str, farpool.Tls | None], str]
BOTH = pytest.mark.parametrize("connect", [connect_sync, connect_awaited], ids=["sync", "aio"])


def logs(server: EmbeddedServer, words: str) -> None:
    """Wait until the server's log has *words*."""
    until = time.monotonic() + WITHIN
    while words not in server.log():
        assert time.monotonic() < until, server.log()
        time.sleep(0.01)


# The server's certificate ------------------------------------------------------------------------------------------


@BOTH
def test_one_that_is_accepted(server: EmbeddedServer, connect: Connect) -> None:
    assert server.tcp_url.startswith("farpools://")
    assert connect(server.tcp_url, TRUST) == "default"
    assert connect(server.tcp_url.replace("127.0.0.1", "localhost"), TRUST) == "default"


def test_from_the_environment(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARPOOL_TLS_CA", str(authority().ca))
    assert connect_sync(server.tcp_url, None) == "default"
    assert main(["status", "--url", server.tcp_url]) == 0


@pytest.mark.parametrize(
    "command", [("tenant", "list"), ("quota", "set", "alice", "--slabs", "1"), ("status", "--tenants")]
)
def test_administration_speaks_tls(
    server: EmbeddedServer,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A stranger in between would be sent the verifiers of tokens. Over TLS no more is asked for than rights."""
    assert main([*command, "--url", server.tcp_url]) == 4
    assert "name its authority" in capfd.readouterr().err
    monkeypatch.setenv("FARPOOL_TLS_CA", str(authority().ca))
    assert main([*command, "--url", server.tcp_url]) == 4
    assert "administrators" in capfd.readouterr().err


def test_an_address_of_tls_is_never_dialled_in_clear() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        session = Session(parse_address(f"farpools://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(farpool.InvalidArgument, match="TLS alone"):
            session.open(time.monotonic() + WITHIN)
        session.close()
        with pytest.raises(BlockingIOError):
            listener.accept()


@BOTH
@pytest.mark.parametrize(
    ("names", "days", "tls", "words"),
    [
        (("127.0.0.1",), (-1, 1), farpool.Tls(ca=stranger().ca), "name its authority"),
        (("127.0.0.1",), (-1, 1), farpool.Tls(), "name its authority"),
        (("127.0.0.1",), (-30, -1), TRUST, "expired"),
        (("127.0.0.1",), (1, 30), TRUST, "not yet valid"),
        (("pool.example",), (-1, 1), TRUST, "not for 127.0.0.1"),
        (("127.0.0.1",), (-1, 1), farpool.Tls(ca=authority().ca, server_name="other.example"), "not for other.example"),
    ],
    ids=["of a stranger", "of no authority", "expired", "too early", "of another name", "of the wrong name"],
)
def test_one_that_is_not(
    connect: Connect, names: tuple[str, ...], days: tuple[int, int], tls: farpool.Tls, words: str
) -> None:
    with serving(authority().issue(*names, days=days)) as served:
        with pytest.raises(farpool.AuthenticationFailed, match=words) as caught:
            connect(served.tcp_url, tls)
        assert "\n" not in str(caught.value)
        logs(served, "no TLS: ")


def test_the_name_can_be_another_than_the_address(server: EmbeddedServer) -> None:
    tls = farpool.Tls(ca=authority().ca, server_name="localhost")
    assert connect_sync(server.tcp_url, tls) == "default"


# The client's ------------------------------------------------------------------------------------------------------


@BOTH
def test_a_client_without_one_is_told(mutual: EmbeddedServer, connect: Connect) -> None:
    with pytest.raises(farpool.AuthenticationFailed, match="name one that the server's client_ca has signed"):
        connect(mutual.tcp_url, TRUST)


@BOTH
def test_one_of_a_stranger_is_refused(mutual: EmbeddedServer, connect: Connect) -> None:
    own = stranger().issue("alice.example")
    with pytest.raises(farpool.AuthenticationFailed, match="refuses this client's certificate"):
        connect(mutual.tcp_url, farpool.Tls(ca=authority().ca, certificate=own.certificate, key=own.key))


@BOTH
def test_the_name_in_it_is_a_tenant(mutual: EmbeddedServer, connect: Connect) -> None:
    alice = authority().issue("alice.example")
    bob = authority().issue("whoever.example", common_name="Bob")
    for tenant, own in {"alice": alice, "bob": bob}.items():
        tls = farpool.Tls(ca=authority().ca, certificate=own.certificate, key=own.key)
        assert connect(mutual.tcp_url, tls) == tenant


def test_a_name_of_no_tenant_is_refused(mutual: EmbeddedServer) -> None:
    own = authority().issue("mallory.example")
    with pytest.raises(farpool.FarpoolError) as caught:
        connect_sync(mutual.tcp_url, farpool.Tls(ca=authority().ca, certificate=own.certificate, key=own.key))
    assert isinstance(caught.value, farpool.AuthenticationFailed)
    assert 'certificates = ["mallory.example"]' in str(caught.value)


def test_it_need_not_be_there_if_the_server_says_so() -> None:
    own = authority().issue("alice.example")
    wanted = {"client_ca": str(authority().ca), "require_client_certificate": False}
    with serving(tls=wanted, tenants={"alice": {"certificates": ["alice.example"]}}) as served:
        assert connect_sync(served.tcp_url, TRUST) == "default"
        tls = farpool.Tls(ca=authority().ca, certificate=own.certificate, key=own.key)
        assert connect_sync(served.tcp_url, tls) == "alice"


# One side alone ----------------------------------------------------------------------------------------------------


@BOTH
def test_a_client_without_tls_is_told_the_address(server: EmbeddedServer, connect: Connect) -> None:
    with pytest.raises(farpool.ServerLost, match="begins with farpools://"):
        connect(server.tcp_url.replace("farpools", "farpool"), None)


@BOTH
def test_a_server_without_tls_is_told_from_one_with(connect: Connect) -> None:
    with serve_embedded(capacity="16MiB", transports=["tcp"]) as plain:
        url = plain.tcp_url.replace("farpool", "farpools")
        with pytest.raises(farpool.ServerLost, match="begins with farpool://"):
            connect(url, TRUST)
        with pytest.raises(farpool.InvalidArgument, match="without TLS"):
            connect(plain.url, TRUST)


def test_something_else_than_tls_in_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()

        async def answer() -> None:
            loop = asyncio.get_running_loop()
            listener.setblocking(False)
            peer, _ = await loop.sock_accept(listener)
            with peer:
                await loop.sock_recv(peer, 100)
                await loop.sock_sendall(peer, b"220 mail.example ESMTP ready\r\n")

        async def both() -> None:
            answering = asyncio.create_task(answer())
            with pytest.raises(farpool.ProtocolError, match="does not speak TLS"):
                await farpool.aio.connect(f"farpools://{host}:{port}", tls=TRUST, timeout=WITHIN)
            await answering

        asyncio.run(both())


@BOTH
def test_nobody_answers_the_handshake(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()

        def silent(url: str) -> None:
            if connect is connect_sync:
                farpool.connect(url, tls=TRUST, timeout=0.3)
            else:
                asyncio.run(awaited(url))

        async def awaited(url: str) -> None:
            await farpool.aio.connect(url, tls=TRUST, timeout=0.3)

        with pytest.raises(farpool.DeadlineExceeded, match="TLS handshake"):
            silent(f"farpools://{host}:{port}")


# Strangers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["0", "1", "11"])
def test_who_does_not_finish_the_handshake_is_closed(server: EmbeddedServer, sent: bytes) -> None:
    """Also a byte now and then does not keep a connection open: the time for the hello includes the handshake."""
    address = parse_address(server.tcp_url)
    with closing(socket.create_connection((address.host, address.port), WITHIN)) as connection:
        connection.sendall(sent)
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"\x16" * 400, "no TLS: "),
        (b"\x16\x03\x01\x00\x05hello", "no TLS: "),
        (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request"),
        (bytes(64), "a client without TLS"),
    ],
    ids=["handshakes", "a short record", "http", "zeros"],
)
def test_what_is_no_handshake_is_refused_and_logged(server: EmbeddedServer, sent: bytes, reason: str) -> None:
    address = parse_address(server.tcp_url)
    with closing(socket.create_connection((address.host, address.port), WITHIN)) as connection:
        host, port = connection.getsockname()
        connection.sendall(sent)
        while connection.recv(4096):
            pass
    logs(server, f"{host}:{port}")
    (line,) = [line for line in server.log().splitlines() if f"{host}:{port}" in line]
    assert reason in line
    assert connect_sync(server.tcp_url, TRUST) == "default"


# New certificates, restarts, the end -------------------------------------------------------------------------------


def show(certificate: Certificate, shown: Certificate) -> None:
    """Put another certificate where a server finds its own."""
    shutil.copy(certificate.certificate, shown.certificate)
    shutil.copy(certificate.key, shown.key)


def test_sighup_reads_the_certificate_again(tmp_path: Path) -> None:
    shown = Certificate(tmp_path / "server.pem", tmp_path / "server.key")
    show(authority().server(), shown)
    with serving(shown) as served, farpool.connect(served.tcp_url, transport="tcp", tls=TRUST) as before:
        slab = before.allocate(64)
        slab.write(b"stays")
        show(stranger().server(), shown)
        os.kill(served.pid, signal.SIGHUP)
        logs(served, "settings reloaded")
        assert connect_sync(served.tcp_url, farpool.Tls(ca=stranger().ca)) == "default"
        assert slab.read(5) == b"stays"
        shown.key.write_text("no key")
        os.kill(served.pid, signal.SIGHUP)
        logs(served, "the certificate of TLS was not read again")
        logs(served, '"failed"')
        noted = [json.loads(line) for line in served.log().splitlines() if '"audit"' in line]
        assert [line["outcome"] for line in noted if line["act"] == "reload"] == ["done", "failed"]
        assert "cannot be used" in noted[-1]["reason"]
        assert connect_sync(served.tcp_url, farpool.Tls(ca=stranger().ca)) == "default"


def test_data_connections_to_another_certificate_are_not_tried_until_the_deadline(tmp_path: Path) -> None:
    """The control connection stays; what is opened after the change is not trusted."""
    shown = Certificate(tmp_path / "server.pem", tmp_path / "server.key")
    show(authority().server(), shown)
    with serving(shown) as served, farpool.connect(served.tcp_url, transport="tcp", tls=TRUST, timeout=WITHIN) as pool:
        show(stranger().server(), shown)
        os.kill(served.pid, signal.SIGHUP)
        logs(served, "settings reloaded")
        with pytest.raises(farpool.AuthenticationFailed, match="name its authority"):
            pool.allocate(64).write(b"secret")

    async def awaited() -> None:
        show(authority().server(), shown)
        with serving(shown) as served:
            async with farpool.aio.connect(served.tcp_url, transport="tcp", tls=TRUST, timeout=WITHIN) as pool:
                show(stranger().server(), shown)
                os.kill(served.pid, signal.SIGHUP)
                logs(served, "settings reloaded")
                slab = await pool.allocate(64)
                with pytest.raises(farpool.AuthenticationFailed, match="name its authority"):
                    await slab.write(b"secret")

    asyncio.run(awaited())


def test_a_killed_server_comes_back() -> None:
    with serving() as server, farpool.connect(server.tcp_url, transport="tcp", tls=TRUST, timeout=WITHIN) as pool:
        slab = pool.allocate(64, name="kept", lease="persistent")
        slab.write(b"kept")
        session = pool.session_id
        server.kill()
        server.start()
        assert slab.read(4) == b"kept"
        pool.stat()
        assert pool.session_id == session
        slab.free()


def test_sigpipe_ends_nobody(server: EmbeddedServer) -> None:
    """Lesson row 14: a peer that dies is an error on one handle, also where SIGPIPE has its default action."""
    program = (
        "import os, signal, sys, farpool\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "pool = farpool.connect(sys.argv[1], transport='tcp', timeout=2)\n"
        "slab = pool.allocate('8MiB')\n"
        "slab.write(bytes(8 << 20))\n"
        "os.kill(int(sys.argv[2]), signal.SIGKILL)\n"
        "try:\n"
        "    for _ in range(3): slab.write(bytes(8 << 20))\n"
        "except farpool.FarpoolError as error:\n"
        "    print(type(error).__name__)\n"
        "pool.close()\n"
    )
    with serving() as served:
        environment = {**os.environ, "FARPOOL_TLS_CA": str(authority().ca)}
        done = subprocess.run(
            [sys.executable, "-c", program, served.tcp_url, str(served.pid)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout.strip() in {"ServerLost", "DeadlineExceeded"}) == (0, True), done.stderr


# Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('certificate = "/nowhere/cert.pem"\nkey = "KEY"', "cannot be read"),
        ('certificate = "KEY"\nkey = "KEY"', "cannot be used for TLS"),
        ('certificate = "CERTIFICATE"\nkey = "OTHER"', "cannot be used for TLS"),
        ('certificate = "CERTIFICATE"\nkey = "KEY"\nclient_ca = "/nowhere/ca.pem"', "cannot be read"),
        ('certificate = "CERTIFICATE"\nkey = "KEY"\nrequire_client_certificate = true', "needs client_ca"),
        ('certificate = "CERTIFICATE"', "key"),
        ('certificate = "CERTIFICATE"\nkey = "KEY"\npassword = "x"', "password"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, words: str
) -> None:
    own = authority().server()
    for name, path in {"CERTIFICATE": own.certificate, "KEY": own.key, "OTHER": stranger().server().key}.items():
        table = table.replace(f'"{name}"', f'"{path}"')
    config = tmp_path / "farpool.toml"
    config.write_text(f'arena = "{tmp_path}/arena"\nunix = "{tmp_path}/s"\nlisten = "127.0.0.1:0"\n[tls]\n{table}\n')
    assert main(["serve", "--config", str(config)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]  # before it the log may name variables of the test run
    assert words in line


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        (farpool.Tls(ca="/nowhere"), "cannot be read"),
        (farpool.Tls(ca="/etc/hostname"), "cannot be used for TLS"),
        (farpool.Tls(key="/nowhere"), "comes with its certificate"),
        ("yes", "is a farpool.Tls"),
    ],
)
def test_what_no_client_can_use(tls: Any, words: str) -> None:
    with pytest.raises(farpool.InvalidArgument, match=words):
        farpool.connect("farpools://127.0.0.1:1", tls=tls)


def test_a_certificate_whose_key_was_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARPOOL_TLS_CERTIFICATE", str(authority().server().certificate))
    with pytest.raises(farpool.InvalidArgument, match="FARPOOL_TLS_KEY"):
        farpool.connect("farpools://127.0.0.1:1")
