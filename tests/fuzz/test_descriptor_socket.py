"""The socket that passes descriptors, under packets that no client of ours sends: those without a right get none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.conftest import Target, bounded, connect_to, pour

import farpool
from farpool.client.pool import Pool
from farpool.protocol.errors import ProtocolError
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.descriptors import ANSWER_BYTES, REQUEST_BYTES, DescriptorAnswer, DescriptorRequest

NUMBERS = st.one_of(st.sampled_from([0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
STATUSES = {
    descriptors.OK: "ok",
    descriptors.REFUSED: "refused",
    descriptors.STALE: "stale",
    descriptors.NO_DESCRIPTORS: "no descriptors",
    descriptors.NAMED: "named",
}


class Stranger:
    """A session that asks for descriptors by hand: of a slab that it may write, and of one that it may read."""

    def __init__(self, target: Target, pool: Pool) -> None:
        self.path = f"{target.address('unix')}.cxl"
        slab = pool.allocate(4096)
        read_only = pool.open("neighbour-tcp", mode="r")
        params = slab.attachment.ticket.params
        proof = {"session": params["session"], "secret": params["secret"]}
        self.own = DescriptorRequest(**proof, slab=slab.id, generation=slab.generation, writable=True)
        self.read_only = DescriptorRequest(**proof, slab=read_only.id, generation=read_only.generation)
        self.slabs = [slab, read_only]

    def connect(self) -> socket.socket:
        """Return a connection that has asked for nothing."""
        return connect_to(self.path, socket.SOCK_SEQPACKET)

    def ask(self, *packets: bytes) -> list[str]:
        """Send *packets*; return the status of each answer, as far as they came. Only ``ok`` may bring a descriptor."""
        statuses: list[str] = []
        with self.connect() as connection:
            for packet in packets:
                try:
                    connection.send(packet)
                    answer, received, _, _ = socket.recv_fds(connection, ANSWER_BYTES + 1, 4)
                except ConnectionError:
                    break
                if not answer:
                    break
                statuses.append(STATUSES[DescriptorAnswer.decode(answer).status])
                assert len(received) == (statuses[-1] == "ok")
                for descriptor in received:
                    os.close(descriptor)
        return statuses


@pytest.fixture(scope="module")
def stranger(target: Target) -> Iterator[Stranger]:
    """Open the session that asks."""
    with farpool.connect(target.server.url, transport="cxl") as pool:
        yield Stranger(target, pool)


# Pure functions -------------------------------------------------------------------------------------------------


@bounded(300)
@given(st.one_of(st.binary(max_size=200), st.binary(min_size=60, max_size=60).map(lambda rest: b"FPd1" + rest)))
def test_any_packet_is_refused_or_understood(packet: bytes) -> None:
    for kind in (DescriptorRequest, DescriptorAnswer):
        with suppress(ProtocolError):
            assert kind.decode(packet).encode()[:4] == packet[:4]


@bounded(100)
@given(NUMBERS, st.binary(min_size=32, max_size=32), NUMBERS, NUMBERS, st.booleans())
def test_a_request_comes_back_as_it_went(
    session: int, secret: bytes, slab: int, generation: int, writable: bool
) -> None:
    request = DescriptorRequest(session, secret, slab, generation, writable)
    assert DescriptorRequest.decode(request.encode()) == request


# A running server -----------------------------------------------------------------------------------------------


@bounded(80)
@given(packet=st.one_of(st.binary(min_size=1, max_size=300), st.binary(min_size=REQUEST_BYTES, max_size=REQUEST_BYTES)))
def test_garbage_ends_that_connection_alone(target: Target, stranger: Stranger, packet: bytes) -> None:
    assert stranger.ask(packet) == []
    assert stranger.ask(stranger.own.encode(), packet) == ["ok"]
    target.check()


@bounded(80)
@given(session=NUMBERS, slab=NUMBERS, generation=NUMBERS, writable=st.booleans(), right=st.sets(st.sampled_from("sge")))
def test_only_what_was_granted_is_passed(
    target: Target, stranger: Stranger, session: int, slab: int, generation: int, writable: bool, right: set[str]
) -> None:
    own = stranger.own
    request = replace(
        own,
        session=own.session if "s" in right else session,
        slab=own.slab if "g" in right else slab,
        generation=own.generation if "e" in right else generation,
        writable=writable,
    )
    if request.session == descriptors.NOBODY:
        expected = "named"  # a probe: which arena answers, and nothing else
    elif request.session != own.session:
        expected = "refused"
    elif request.slab in (descriptors.GENERATIONS, own.slab) and (
        not request.slab or request.generation == own.generation
    ):
        expected = "ok"
    else:
        expected = "stale"
    assert stranger.ask(request.encode()) == [expected]
    target.check()


def test_a_wrong_secret_gets_nothing(target: Target, stranger: Stranger) -> None:
    wrong = [bytes(32), stranger.own.secret[::-1], stranger.own.secret[:31] + b"\0"]
    packets = [replace(stranger.own, secret=secret).encode() for secret in wrong if secret != stranger.own.secret]
    assert stranger.ask(*packets) == ["refused"] * len(packets)
    neighbour = replace(stranger.own, session=target.neighbours[0].pool.session_id)
    assert stranger.ask(neighbour.encode()) == ["refused"]


def test_a_read_only_grant_gets_no_writable_descriptor(stranger: Stranger) -> None:
    read_only = stranger.read_only
    assert stranger.ask(read_only.encode(), replace(read_only, writable=True).encode()) == ["ok", "stale"]


def test_another_sessions_slab_is_stale(target: Target, stranger: Stranger) -> None:
    neighbour = target.neighbours[0].slab
    request = replace(stranger.own, slab=neighbour.id, generation=neighbour.generation)
    assert stranger.ask(request.encode()) == ["stale"]


@pytest.mark.parametrize("nbytes", [1, REQUEST_BYTES - 1, REQUEST_BYTES + 1, 100_000])
def test_a_packet_of_another_length_is_logged_once(target: Target, stranger: Stranger, nbytes: int) -> None:
    since = len(target.server.log())
    assert stranger.ask(bytes(nbytes)) == []
    assert target.logged_once(since, f"unix:pid={os.getpid()},uid={os.getuid()}")["event"] == "data plane: garbage"
    target.check()


def test_descriptors_that_are_sent_to_the_server_are_not_kept(target: Target, stranger: Stranger) -> None:
    # The target's fixture counts the server's descriptors in the end.
    with stranger.connect() as connection, Path("/dev/null").open("rb") as null:
        for _ in range(10):
            socket.send_fds(connection, [stranger.own.encode()], [null.fileno()] * 10)
            _, received, _, _ = socket.recv_fds(connection, ANSWER_BYTES, 1)
            os.close(received[0])
    target.check()


def test_who_never_takes_the_answers_is_shown_out(target: Target, stranger: Stranger) -> None:
    with stranger.connect() as connection:
        with suppress(ConnectionError):
            pour(connection, stranger.own.encode(), most=16 << 20)
        target.check()
    target.check()


def test_many_connections_at_once_leave_the_neighbours_alone(target: Target, stranger: Stranger) -> None:
    with ExitStack() as stack:
        for number in range(200):
            stack.enter_context(stranger.connect())
            if number % 50 == 49:  # less than the queue of connections holds
                target.check()
    target.check()
