"""The raw ping-pong's process: it answers, it goes away, and its end is an error and no hang."""

from __future__ import annotations

import os
import signal
import socket
from array import array
from contextlib import suppress
from pathlib import Path

import pytest

from farpool import DeadlineExceeded, ServerLost
from farpool.perf import raw_socket
from farpool.perf.raw_socket import RawSocket

pytestmark = pytest.mark.usefixtures("no_leak")


def samples() -> array[int]:
    return array("q", bytes(8 * 10))


def test_contenders_take_turns_on_one_process() -> None:
    with RawSocket() as raw:
        small, large, stream = (
            raw.contender(64, 64),
            raw.contender(64, 1 << 20),
            raw.contender(64, 1 << 20, 4),
        )
        for contender in (small, large, small, stream, large):
            taken = samples()
            assert contender(1, taken, 10.0) == len(taken)
            assert min(taken) > 0


def test_close_may_be_called_twice() -> None:
    raw = RawSocket()
    pid = raw.pid
    raw.close()
    raw.close()
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_process_is_lost() -> None:
    with RawSocket() as raw:
        contender = raw.contender(64, 64)
        assert contender(1, samples(), 10.0) > 0
        os.kill(raw.pid, signal.SIGKILL)
        with pytest.raises(ServerLost):
            contender(1, array("q", bytes(8 << 20)), 60.0)
        with pytest.raises(ServerLost):
            raw.contender(64, 4096)(1, samples(), 10.0)


def test_a_stopped_process_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_socket, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(raw_socket, "END_SECONDS", 0.05)
    with RawSocket() as raw:
        os.kill(raw.pid, signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded):
            raw.contender(64, 64)(1, samples(), 10.0)


def test_a_stranger_on_its_port_does_no_harm() -> None:
    with RawSocket() as raw:
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 16, bytes(16)):
            with socket.create_connection(("127.0.0.1", raw.port)) as stranger:
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(20)
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        assert raw.contender(64, 64)(1, samples(), 10.0) > 0
