"""A server that another takes over from under load: sessions, slabs and sockets go on, connections are made anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.certificates import authority
from tests.faults.conftest import APIS, TRANSPORTS, WITHIN, Serve, StartClient, until

import farpool
from farpool.server.embedded import EmbeddedServer


def refused(*options: str) -> str:
    """Run ``farpool serve --takeover`` that must be refused; return its one line."""
    command = [sys.executable, "-m", "farpool.cli.main", "serve", "--takeover", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("farpool: ")]
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), done
    return lines[0]


def socket_of(server: EmbeddedServer) -> str:
    return server.url.removeprefix("unix://")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("api", APIS)
def test_clients_go_on_under_a_takeover(serve: Serve, start_client: StartClient, transport: str, api: str) -> None:
    server = serve()
    client = start_client(server, transport, api, timeout=30.0)
    for _ in range(2):
        pid, address = server.pid, server.tcp_url
        server.take_over()
        assert (server.pid != pid, server.tcp_url) == (True, address)
        with farpool.connect(server.url, transport=transport) as pool, pool.open(client.slab) as shared:
            before = shared.read(8)

            def goes_on(shared: farpool.Slab = shared, before: bytes = before) -> bool:
                if (said := client.said()) is not None:
                    assert said["error"] == "ServerLost", said  # a write in flight, whose outcome is unknown
                    client.tell("again")
                return shared.read(8) != before

            until(goes_on, "the client writes again")


def test_sessions_names_and_session_slabs_go_on(serve: Serve) -> None:
    server = serve()
    with farpool.connect(server.url) as pool, farpool.connect(server.tcp_url, transport="tcp") as remote:
        slab, far = pool.allocate(4096, name="kept"), remote.allocate(4096)
        slab.write(b"bytes")
        far.write(b"far")
        session, epoch = pool.session_id, pool.stat().epoch
        server.take_over()
        assert (far.read(3), slab.read(5)) == (b"far", b"bytes")
        assert (pool.session_id, pool.stat().epoch) == (session, epoch + 1)
        with remote.open("kept") as seen:
            assert seen.read(5) == b"bytes"
        assert {info.id for info in pool.slabs()} == {slab.id, far.id}


def test_a_device_arena_is_taken_over(tmp_path: Path) -> None:
    device = tmp_path / "memory"
    device.write_bytes(b"")
    os.truncate(device, 32 << 20)
    with (
        farpool.serve_embedded(
            transports=["cxl"], arena=device, capacity="16MiB", state_dir=str(tmp_path / "state")
        ) as server,
        farpool.connect(server.url, transport="cxl") as pool,
    ):
        slab = pool.allocate(4096)
        slab.write(b"bytes")
        server.take_over()
        assert pool.open(slab.id).read(5) == b"bytes"


def test_what_does_not_fit_is_refused_and_the_server_goes_on(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    pid = server.pid
    other = str(tmp_path / "other")
    line = refused("--unix", socket_of(server), "--arena", other)
    assert server.arena in line
    assert other in line
    with farpool.connect(server.url) as pool:
        assert pool.stat().pid == pid
        assert pool.allocate(4096).read(1) == b"\0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "authentication is required, and would be none"),
        (("--authentication", "required", "--listen", "127.0.0.1:1"), "listen is 127.0.0.1:"),
        (("--authentication", "required", "--data-listen", "127.0.0.1:1"), "data_listen is 127.0.0.1:0, and would be"),
    ],
)
def test_nobody_is_let_in_by_a_takeover_that_was_not(options: tuple[str, ...], words: str) -> None:
    with farpool.serve_embedded(capacity="16MiB", authentication="required") as server:
        pid = server.pid
        line = refused("--unix", socket_of(server), "--arena", server.arena, "--listen", "127.0.0.1:0", *options)
        assert words in line
        assert line.count("would be") == 1
        with farpool.connect(server.url) as pool:
            assert pool.stat().pid == pid


def test_tls_does_not_end_by_a_takeover() -> None:
    pytest.importorskip("farpool.native.tls", reason="built only where libssl-dev is: apt-get install libssl-dev")
    tls = {**authority().server().settings, "client_ca": str(authority().ca)}
    with farpool.serve_embedded(capacity="16MiB", transports=["tcp"], tls=tls) as server:
        line = refused("--unix", socket_of(server), "--arena", server.arena, "--listen", "127.0.0.1:0")
        assert "tls is on, and would be off; client_certificates is required, and would be none" in line
        pid = server.pid
        server.take_over()
        assert server.pid != pid


def test_without_a_server_there_is_nothing_to_take_over(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere.sock")
    assert nowhere in refused("--unix", nowhere, "--arena", str(tmp_path / "arena"))
    assert not (tmp_path / "arena").exists()
