"""Which address a client takes when nobody names one."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import pytest

from farpool.client.dialing import dial, find_address
from farpool.protocol.addresses import Address
from farpool.protocol.errors import DeadlineExceeded, InvalidArgument


def test_url_comes_first() -> None:
    assert find_address("farpool://a:1", {"FARPOOL_URL": "farpool://b:2"}) == Address(host="a", port=1)


def test_environment_comes_next(socket_path: Path) -> None:
    environment = {"FARPOOL_URL": "farpool://b:2", "XDG_RUNTIME_DIR": str(socket_path.parent)}
    assert find_address(None, environment) == Address(host="b", port=2)


def test_default_socket_if_there_is_one(socket_path: Path) -> None:
    environment = {"FARPOOL_URL": "", "XDG_RUNTIME_DIR": str(socket_path.parent)}
    path = socket_path.parent / "farpool.sock"
    path.write_text("a file, no socket")
    assert find_address(None, environment) == Address(host="127.0.0.1", port=7700)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert find_address(None, environment) == Address(path=str(path))


def test_tls() -> None:
    assert find_address("farpools://host:7700") == Address(host="host", port=7700, tls=True)


@pytest.mark.parametrize("url", ["host:7700", "http://host", "unix://relative", "farpool://host:99999", ""])
def test_addresses_that_cannot_be(url: str) -> None:
    with pytest.raises(InvalidArgument):
        find_address(url, {})


def test_environment_that_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="nonsense"):
        find_address(None, {"FARPOOL_URL": "nonsense"})


def test_socket_is_blocking(socket_path: Path) -> None:
    """A native channel waits in the kernel, so that O_NONBLOCK would make it spin."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        descriptor = dial(Address(path=str(socket_path)), time.monotonic() + 5)
        assert os.get_blocking(descriptor)
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_full_queue_meets_the_deadline(socket_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen(0)
        taken: list[socket.socket] = []
        try:
            while True:
                peer = socket.socket(socket.AF_UNIX)
                taken.append(peer)
                peer.setblocking(False)
                if peer.connect_ex(str(socket_path)) == errno.EAGAIN:
                    break
            with pytest.raises(DeadlineExceeded, match="in time"):
                dial(Address(path=str(socket_path)), time.monotonic() + 0.1)
        finally:
            for peer in taken:
                peer.close()
