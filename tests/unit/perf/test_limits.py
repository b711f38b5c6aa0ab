"""The loops in C: what they move, what they refuse, and that a dead or silent peer ends them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from array import array
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from farpool import DeadlineExceeded, InvalidArgument, OutOfBounds, ServerLost
from farpool.native import limits

SHORT = 0.005
Pair = tuple[socket.socket, socket.socket]


def numbers(*values: int) -> array[int]:
    return array("q", values)


def samples(count: int = 1000) -> array[int]:
    return array("q", bytes(8 * count))


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def tcp() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield near, far


# Memory -------------------------------------------------------------------------------------------


def test_the_clock_is_timed() -> None:
    taken = samples()
    count = limits.clock_overhead(taken, SHORT)
    assert 0 < count <= len(taken)
    assert all(value >= 0 for value in taken[:count])


def test_a_full_array_ends_a_loop() -> None:
    assert limits.clock_overhead(samples(3), 10.0) == 3


def test_reads_fill_the_parts_of_the_buffer_in_turn() -> None:
    memory, buffer, taken = bytes(range(64)), bytearray(16), samples(1)
    assert limits.read_memory(memory, numbers(0, 40), buffer, 8, 2, taken, SHORT) == 1
    assert buffer == memory[:8] + memory[40:48]
    assert taken[0] > 0


def test_writes_go_to_each_offset_in_turn() -> None:
    memory, buffer = bytearray(64), bytes(range(1, 17))
    limits.write_memory(memory, numbers(8, 48), buffer, 8, 2, samples(1), SHORT)
    assert memory == bytes(8) + buffer[:8] + bytes(32) + buffer[8:] + bytes(8)


def test_additions_are_counted_by_the_word() -> None:
    memory = bytearray(32)
    count = limits.add_words(memory, numbers(8), 10, samples(7), SHORT)
    assert int.from_bytes(memory[8:16], "little") == 10 * count
    assert not any(memory[:8] + memory[16:])


def test_loads_change_nothing() -> None:
    memory = bytearray(b"\x01" * 32)
    assert limits.load_words(memory, numbers(0, 24), 10, samples(), SHORT) > 0
    assert memory == b"\x01" * 32


@pytest.mark.parametrize("offset", [-1, 57, 1 << 62, -(1 << 62)])
def test_an_offset_outside_the_memory_is_refused(offset: int) -> None:
    buffer = bytearray(8)
    with pytest.raises(OutOfBounds):
        limits.read_memory(b"\x01" * 64, numbers(0, offset), buffer, 8, 1, samples(), SHORT)
    assert not any(buffer)


@pytest.mark.parametrize(
    ("offsets", "nbytes", "calls", "room", "seconds"),
    [
        ((), 8, 1, 10, SHORT),
        ((0,), 0, 1, 10, SHORT),
        ((0,), 9, 1, 10, SHORT),  # the buffer has 8
        ((0,), 8, 0, 10, SHORT),
        ((0,), 8, 1, 0, SHORT),
        ((0,), 8, 1, 10, 0.0),
        ((0,), 8, 1, 10, float("nan")),
        ((0,), 8, 1, 10, 1e6),
    ],
)
def test_a_loop_that_cannot_be_is_refused(
    offsets: tuple[int, ...], nbytes: int, calls: int, room: int, seconds: float
) -> None:
    with pytest.raises(InvalidArgument):
        limits.read_memory(bytes(64), numbers(*offsets), bytearray(8), nbytes, calls, samples(room), seconds)


def test_a_word_off_its_alignment_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="aligned"):
        limits.add_words(bytearray(64), numbers(4), 1, samples(), SHORT)


def test_read_only_memory_is_not_written() -> None:
    with pytest.raises((TypeError, BufferError, ValueError)):
        limits.write_memory(bytes(64), numbers(0), bytes(8), 8, 1, samples(), SHORT)


# Files --------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_files_are_made_and_removed(directory: int, tmp_path: Path) -> None:
    assert limits.slab_files(directory, b"limit", 4096, samples(), SHORT) > 0
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(directory: int, tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("mine")
    with pytest.raises(FileExistsError, match="4096 bytes"):
        limits.slab_files(directory, b"limit", 4096, samples(), SHORT)
    assert (tmp_path / "limit").read_text() == "mine"


def test_a_file_without_room_is_removed(directory: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="refused"):
        limits.slab_files(directory, b"limit", 1 << 60, samples(), SHORT)
    assert not list(tmp_path.iterdir())


# Sockets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_nbytes", "reply_nbytes", "ahead"),
    [(64, 64, 1), (64, 1 << 20, 1), (1 << 20, 64, 4), (1, 70000, 3)],
)
def test_round_trips_are_served_and_counted(tcp: Pair, request_nbytes: int, reply_nbytes: int, ahead: int) -> None:
    near, far = tcp
    inbox, outbox = bytearray(3 << 20), bytes(range(256)) * (3 << 12)
    reply = bytearray(reply_nbytes)
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(limits.serve_round_trips, far.fileno(), inbox, request_nbytes, outbox, reply_nbytes, 20.0)
        count = limits.round_trips(near.fileno(), b"\x07" * request_nbytes, reply, samples(4), 10.0, 20.0, ahead=ahead)
        near.close()
        assert (count, served.result()) == (4, 4 + ahead - 1)
    assert inbox[:request_nbytes] == b"\x07" * request_nbytes
    assert bytes(reply) in outbox


def test_a_peer_that_never_answers_is_a_deadline(pair: Pair) -> None:
    with pytest.raises(DeadlineExceeded):
        limits.round_trips(pair[0].fileno(), bytes(8), bytearray(8), samples(), 60.0, 0.05)


def test_a_peer_that_stops_in_the_middle_is_a_deadline(pair: Pair) -> None:
    pair[1].send(bytes(5))
    with pytest.raises(DeadlineExceeded):
        limits.round_trips(pair[0].fileno(), bytes(8), bytearray(8), samples(), 60.0, 0.05)


def test_a_peer_that_takes_nothing_is_a_deadline(pair: Pair) -> None:
    with pytest.raises(DeadlineExceeded):
        limits.round_trips(pair[0].fileno(), bytes(64 << 20), bytearray(8), samples(), 60.0, 0.05)


@pytest.mark.parametrize("sent", [0, 5])
def test_a_peer_that_dies_is_lost(pair: Pair, sent: int) -> None:
    pair[1].send(bytes(sent))
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ServerLost):
        limits.round_trips(pair[0].fileno(), bytes(8), bytearray(8), samples(), 60.0, 20.0)


def test_a_reset_connection_is_lost(tcp: Pair) -> None:
    near, far = tcp
    near.send(b"unread")
    far.close()
    with pytest.raises(ServerLost):
        limits.round_trips(near.fileno(), bytes(8), bytearray(8), samples(), 60.0, 20.0)


def test_a_client_that_ends_between_requests_is_no_error(pair: Pair) -> None:
    pair[1].sendall(bytes(16))
    pair[1].shutdown(socket.SHUT_WR)
    assert limits.serve_round_trips(pair[0].fileno(), bytearray(8), 8, bytes(8), 8, 20.0) == 2


def test_a_client_that_ends_inside_a_request_is_lost(pair: Pair) -> None:
    pair[1].sendall(bytes(12))
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(ServerLost):
        limits.serve_round_trips(pair[0].fileno(), bytearray(8), 8, bytes(8), 8, 20.0)


def test_a_silent_client_is_a_deadline(pair: Pair) -> None:
    with pytest.raises(DeadlineExceeded):
        limits.serve_round_trips(pair[0].fileno(), bytearray(8), 8, bytes(8), 8, 0.05)


class SignalError(Exception):
    """What the test's signal handler raises."""


@contextmanager
def signals_after(asked: socket.socket) -> Generator[None]:
    """Send this thread signals once *asked* is readable; the first one's handler raises.

    One signal is not enough: it may come after the loop's last look and just before it waits.
    """
    raised = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if not raised.is_set():
            raised.set()
            raise SignalError

    def send(thread: int) -> None:
        asked.recv(1)
        while not raised.wait(0.02):
            signal.pthread_kill(thread, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(send, threading.get_ident())
        yield
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_the_wait(pair: Pair) -> None:
    near, far = pair
    with signals_after(far), pytest.raises(SignalError):
        limits.round_trips(near.fileno(), bytes(8), bytearray(8), samples(), 60.0, 60.0)


def test_a_nonblocking_socket_is_refused(pair: Pair) -> None:
    pair[0].setblocking(False)
    with pytest.raises(InvalidArgument, match="blocking"):
        limits.round_trips(pair[0].fileno(), bytes(8), bytearray(8), samples(), 1.0, 1.0)


def test_a_closed_descriptor_is_the_systems_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        limits.round_trips(-1, bytes(8), bytearray(8), samples(), 1.0, 1.0)


@pytest.mark.parametrize(
    ("request_nbytes", "reply_nbytes", "seconds", "timeout", "ahead"),
    [
        (0, 8, 1.0, 1.0, 1),
        (8, 0, 1.0, 1.0, 1),
        (8, 8, 0.0, 1.0, 1),
        (8, 8, 1.0, 0.0, 1),
        (8, 8, 1.0, float("nan"), 1),
        (8, 8, 1.0, 1.0, 0),
        (1 << 20, 1 << 20, 1.0, 1.0, 2),  # both ends would wait for the other to read
    ],
)
def test_a_ping_pong_that_cannot_be_is_refused(
    pair: Pair, request_nbytes: int, reply_nbytes: int, seconds: float, timeout: float, ahead: int
) -> None:
    with pytest.raises(InvalidArgument):
        limits.round_trips(
            pair[0].fileno(),
            bytes(request_nbytes),
            bytearray(reply_nbytes),
            samples(),
            seconds,
            timeout,
            ahead=ahead,
        )


@pytest.mark.parametrize(("request_nbytes", "reply_nbytes"), [(0, 8), (9, 8), (8, 0), (8, 9)])
def test_messages_that_do_not_fit_are_refused(pair: Pair, request_nbytes: int, reply_nbytes: int) -> None:
    with pytest.raises(InvalidArgument, match="does not fit"):
        limits.serve_round_trips(pair[0].fileno(), bytearray(8), request_nbytes, bytes(8), reply_nbytes, 1.0)
