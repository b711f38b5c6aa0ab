"""Lessons row 4: one conversation was served another's data, with no error.

Here every handle carries a generation and belongs to a session, and each side checks both on every access.
"""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import farpool
from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, pack_hello, pack_request, unpack_answer
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest

if TYPE_CHECKING:
    from farpool.server.embedded import EmbeddedServer

SECRET = b"of another conversation"


def params_of(slab: farpool.Slab) -> dict[str, Any]:
    return dict(slab.attachment.ticket.params)


def test_slab_in_the_place_of_another(pool: farpool.Pool, other: farpool.Pool) -> None:
    """The same name and size, allocated the moment the first is freed, by another session."""
    for _ in range(10):
        old = pool.allocate(4096, name="conversation")
        old.write(b"first conversation")
        twin = other.open("conversation", mode="r")
        assert twin.read(5) == b"first"
        old.free()
        new = other.allocate(4096, name="conversation")
        new.write(SECRET)
        target = bytearray(len(SECRET))
        for handle in (old, twin):
            with pytest.raises(farpool.StaleSlab):
                handle.read_into(target)
            with pytest.raises(farpool.StaleSlab):
                handle.readv([(0, target)])
        assert target == bytes(len(SECRET))
        assert new.generation != old.generation
        new.free()


def test_handle_of_another_session_on_the_tcp_wire(server: EmbeddedServer) -> None:
    """A client that makes handles and generations up gets none of the bytes that others have attached."""
    with (
        farpool.connect(server.url, transport="tcp") as victim,
        farpool.connect(server.url, transport="tcp") as thief,
    ):
        slab = victim.allocate(4096)
        slab.write(SECRET)
        theirs, ours = params_of(slab), params_of(thief.allocate(64))
        with (
            socket.create_connection((theirs["host"], theirs["port"]), timeout=10) as wire,
            wire.makefile("rb") as answers,
        ):
            wire.sendall(pack_hello(ours["slot"], ours["secret"]))
            assert unpack_answer(answers.read(ANSWER_BYTES))["status"] == 0
            for handle in {theirs["handle"], *range(64)} - {ours["handle"]}:
                for generation in (0, slab.generation, slab.generation + 1):
                    read = pack_request(OPERATIONS["read"], handle=handle, generation=generation, length=len(SECRET))
                    wire.sendall(read)
                    answer = unpack_answer(answers.read(ANSWER_BYTES))
                    assert answer["status"] != 0
                    assert answer["length"] == 0
        assert slab.read(len(SECRET)) == SECRET


def test_descriptor_of_another_session(server: EmbeddedServer) -> None:
    """A session that proves who it is gets no descriptor of a slab that was not granted to it."""
    with (
        farpool.connect(server.url, transport="cxl") as victim,
        farpool.connect(server.url, transport="cxl") as thief,
    ):
        slab = victim.allocate(4096)
        slab.write(SECRET)
        ours = params_of(thief.allocate(64))
        for generation in (0, slab.generation, slab.generation + 1):
            request = DescriptorRequest(
                session=thief.session_id,
                secret=ours["secret"],
                slab=slab.id,
                generation=generation,
            )
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as wire:
                wire.settimeout(10)
                wire.connect(ours["socket"])
                wire.send(request.encode())
                packet, received, _, _ = socket.recv_fds(wire, descriptors.ANSWER_BYTES, 1)
            assert DescriptorAnswer.decode(packet).status != descriptors.OK
            assert received == []
