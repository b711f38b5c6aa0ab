"""The inputs that fuzzing has kept, sent to a server: ``corpus/README.md`` says what each is.

No coverage and no chance: what once was found stays found, and sanitizers see what these inputs reach in native code.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fuzz.conftest import DataStranger, Target, connect_to, exchange, framed, hello_frame
from tests.fuzz.data_port import Port

from farpool.native.tcp_wire import ANSWER_BYTES
from farpool.transports.cxl.descriptors import ANSWER_BYTES as PACKET_BYTES

CORPUS = Path(__file__).with_name("corpus")


def inputs(target: str) -> list[bytes]:
    """Return the inputs of a folder; none of them is a mistake."""
    found = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    assert found
    return found


def test_every_folder_is_replayed() -> None:
    folders = {path.name for path in CORPUS.iterdir() if path.is_dir()}
    assert folders == {"data_port", "descriptors", "frames", "messages"}


def test_data_port_in_this_process() -> None:
    """Bytes outside of the slab stay as they were, and the next connection is answered."""
    with Port() as port:
        for data in inputs("data_port"):
            port.take(data[1:])
            port.check()
            assert len(port.take(b"")) == ANSWER_BYTES


def test_data_port_of_a_server(target: Target, owner: DataStranger) -> None:
    """There the handles are another's or nobody's."""
    for data in inputs("data_port"):
        with owner.connect() as connection:
            exchange(connection, owner.hello, data[1:])
    target.check()


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_frames(target: Target, over: str) -> None:
    for data in inputs("frames"):
        cut = data[0] if data else 0
        target.talk(data[1:cut], data[max(cut, 1) :], over=over)
    target.check()


def test_messages_in_a_session_and_outside_of_one(target: Target) -> None:
    for data in inputs("messages"):
        target.talk(framed(data))
        target.talk(hello_frame(), framed(data))
    target.check()


def test_descriptors(target: Target) -> None:
    """Nobody said who they are: no descriptor comes back."""
    for packet in inputs("descriptors"):
        with (
            connect_to(f"{target.address('unix')}.cxl", socket.SOCK_SEQPACKET) as connection,
            suppress(ConnectionError),
        ):
            connection.send(packet)
            connection.shutdown(socket.SHUT_WR)
            _, received, _, _ = socket.recv_fds(connection, PACKET_BYTES + 1, 4)
            for descriptor in received:
                os.close(descriptor)
            assert received == []
    target.check()
