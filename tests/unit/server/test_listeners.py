"""Where the control plane listens: what is replaced, what is refused, what is left behind."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from farpool.server.listeners import UnixListener, bind_tcp, refuse_exposure
from farpool.server.settings import ConfigurationError


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def test_the_socket_appears_when_it_is_shown_with_its_mode(folder: Path) -> None:
    path = folder / "f.sock"
    listener = UnixListener(str(path), 0o660)
    try:
        assert not path.exists()
        listener.show()
        assert answers(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    finally:
        listener.close()
        listener.close()
    assert list(folder.iterdir()) == []


def test_a_socket_that_was_never_shown_leaves_nothing(folder: Path) -> None:
    UnixListener(str(folder / "f.sock"), 0o600).close()
    assert list(folder.iterdir()) == []


def test_a_stale_socket_is_replaced(folder: Path) -> None:
    path = folder / "f.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    listener = UnixListener(str(path), 0o600)
    listener.show()
    assert answers(path)
    listener.close()
    assert not path.exists()


def test_a_server_that_answers_is_left_alone(folder: Path) -> None:
    path = folder / "f.sock"
    first = UnixListener(str(path), 0o600)
    first.show()
    with pytest.raises(ConfigurationError, match=rf"a server answers at {path} already"):
        UnixListener(str(path), 0o600)
    assert answers(path)
    first.close()


def test_what_is_no_socket_is_not_replaced(folder: Path) -> None:
    path = folder / "f.sock"
    path.write_text("mine")
    with pytest.raises(ConfigurationError, match="no socket; remove it"):
        UnixListener(str(path), 0o600)
    assert path.read_text() == "mine"


def test_a_name_that_another_took_over_stays(folder: Path) -> None:
    path = folder / "f.sock"
    first = UnixListener(str(path), 0o600)
    first.show()
    path.unlink()
    second = UnixListener(str(path), 0o600)
    second.show()
    first.close()
    assert answers(path)
    second.close()


def test_a_missing_folder_is_made_private(folder: Path) -> None:
    listener = UnixListener(str(folder / "made" / "f.sock"), 0o600)
    assert stat.S_IMODE((folder / "made").stat().st_mode) == 0o700
    listener.close()


def test_unfit_folders_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="--unix"):
        UnixListener(str(folder / "no" / "such" / "f.sock"), 0o600)
    loose = folder / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    with pytest.raises(ConfigurationError, match="can be changed by other users"):
        UnixListener(str(loose / "f.sock"), 0o600)
    if os.geteuid() == 0:
        foreign = folder / "foreign"
        foreign.mkdir()
        os.chown(foreign, 12345, 12345)
        with pytest.raises(ConfigurationError, match="owner uid 12345"):
            UnixListener(str(foreign / "f.sock"), 0o600)


def test_a_port_is_bound_and_named() -> None:
    listener, address = bind_tcp("127.0.0.1:0")
    with listener:
        assert address.port == listener.getsockname()[1] != 0
        assert str(address) == f"farpool://127.0.0.1:{address.port}"
        with pytest.raises(ConfigurationError, match=r"the port is in use; choose another with --listen"):
            bind_tcp(f"127.0.0.1:{address.port}")


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "no-such-host.invalid:0"])
def test_an_address_that_is_not_ours_is_refused(listen: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen on {listen}: .*"):
        bind_tcp(listen)


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:7700", "127.8.9.1:0", "[::1]:7700", "localhost:7700", "no.such.host.invalid:1"]
)
def test_addresses_that_no_other_host_reaches_need_no_authentication(listen: str) -> None:
    refuse_exposure(listen)


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:7700", "[::]:0", "192.0.2.1:7700", "[fe80::1%lo]:1", "[::ffff:127.0.0.1]:1"]
)
def test_addresses_that_others_may_reach_do(listen: str) -> None:
    with pytest.raises(ConfigurationError, match="--insecure"):
        refuse_exposure(listen)
