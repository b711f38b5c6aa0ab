"""Nobody keeps others out of a data plane by the number of its connections; who has too many is told which limit."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import pytest

import farpool
import farpool.aio
from farpool.client.administration import Administration
from farpool.native.tcp_wire import ANSWER_BYTES, STATUSES, pack_hello, unpack_answer
from farpool.protocol.errors import InvalidArgument
from farpool.server.embedded import EmbeddedServer
from farpool.transports.connection_limits import connection_limits
from farpool.transports.cxl import descriptors
from farpool.transports.cxl.connections import MAX_STRANGERS
from farpool.transports.cxl.descriptors import DescriptorAnswer, DescriptorRequest

WITHIN = 20.0
SERVER = 32
SESSION = 12


@contextmanager
def serving(*tenants: str, session: int = SESSION) -> Generator[EmbeddedServer]:
    limits = {"max_connections": SERVER, "max_session_connections": session}
    with farpool.serve_embedded(
        capacity="16MiB", transport_settings={"tcp": limits, "cxl": limits}, session_timeout=300
    ) as server:
        with Administration(server.url, WITHIN) as administration:
            for tenant in tenants:
                administration.add_tenant(tenant, None)
        yield server


class Crowd:
    """Connections of sessions whose owners open one after the other by hand."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.connections: dict[str, list[socket.socket]] = {}
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def pool(self, transport: str, **options: Any) -> farpool.Pool:
        url = self.server.url if transport == "cxl" else self.server.tcp_url
        pool = farpool.connect(url, transport=transport, timeout=WITHIN, **options)
        return self._undo.enter_context(pool)

    def slab(self, transport: str, **options: Any) -> farpool.Slab:
        return self.pool(transport, **options).allocate(4096)

    def fill(self, slab: farpool.Slab) -> tuple[int, str]:
        """Open connections of the slab's session until one is refused; return how many there were, and its answer."""
        for number in range(SERVER + 1):
            status = self._open(slab)
            if status != "ok":
                return number, status
        raise AssertionError("there is no limit")

    def _open(self, slab: farpool.Slab) -> str:
        params = slab.attachment.ticket.params
        over_tcp = slab.transport == "tcp"
        kind = socket.SOCK_STREAM if over_tcp else socket.SOCK_SEQPACKET
        connection = self._undo.enter_context(socket.socket(socket.AF_INET if over_tcp else socket.AF_UNIX, kind))
        connection.settimeout(WITHIN)
        connection.connect((params["host"], params["port"]) if over_tcp else params["socket"])
        if over_tcp:
            connection.sendall(pack_hello(params["slot"], params["secret"]))
            return STATUSES[unpack_answer(connection.recv(ANSWER_BYTES, socket.MSG_WAITALL))["status"]]
        connection.sendall(DescriptorRequest(params["session"], params["secret"]).encode())
        answer, received, _, _ = socket.recv_fds(connection, descriptors.ANSWER_BYTES, 1)
        for descriptor in received:
            os.close(descriptor)
        status, _ = descriptors.without_number(DescriptorAnswer.decode(answer).status)
        return CXL_STATUSES[status]


CXL_STATUSES = {
    descriptors.OK: "ok",
    descriptors.SESSION_FULL: "session full",
    descriptors.TENANT_FULL: "tenant full",
    descriptors.SERVER_FULL: "server full",
}


@pytest.fixture(params=["tcp", "cxl"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_session_over_its_limit_harms_itself_alone(transport: str) -> None:
    with serving("bad", "good") as server, Crowd(server) as crowd:
        bad = crowd.slab(transport, tenant="bad")
        already = 0 if transport == "tcp" else 1  # what it has attached the slab with
        assert crowd.fill(bad) == (SESSION - already, "session full")
        if transport == "tcp":  # over cxl the slab is mapped
            with pytest.raises(farpool.QuotaExceeded, match=rf"session has {SESSION} .*max_session_connections"):
                bad.read(4)
        neighbour = crowd.slab(transport, tenant="bad")
        assert neighbour.read(4) == bytes(4)
        assert crowd.slab(transport, tenant="good").read(4) == bytes(4)
        refusals = [entry for entry in map(json.loads, server.log().splitlines()) if entry["event"] == "audit"]
        refusals = [entry for entry in refusals if entry["outcome"] == "refused"]
        assert {(entry["tenant"], entry["error"], entry["transport"]) for entry in refusals} == {
            ("bad", "QuotaExceeded", transport)
        }


def test_its_end_gives_the_places_back(transport: str) -> None:
    with serving() as server:
        for _ in range(SERVER // SESSION + 2):
            with Crowd(server) as crowd:
                assert crowd.fill(crowd.slab(transport))[1] == "session full"


def test_several_tenants_together_leave_room_for_another(transport: str) -> None:
    with serving("a", "b", "c", session=SERVER) as server, Crowd(server) as crowd:
        had: list[int] = []
        for tenant in ("a", "b"):
            number, status = crowd.fill(crowd.slab(transport, tenant=tenant))
            assert status == "tenant full"
            had.append(number)
        assert had[0] > had[1] >= SERVER // 8
        slab = crowd.slab(transport, tenant="c")
        slab.write(b"here")
        assert slab.read(4) == b"here"


def test_the_only_tenant_may_have_all(transport: str) -> None:
    with serving(session=SERVER + 1) as server, Crowd(server) as crowd:
        first = crowd.slab(transport)
        assert crowd.fill(first) == (SERVER - (transport == "cxl"), "server full")
        with pytest.raises(farpool.QuotaExceeded, match=r"max_connections .*LimitNOFILE"):
            crowd.slab(transport).read(4)


def test_threads_make_do_with_the_connections_that_there_are() -> None:
    with serving(session=3) as server, Crowd(server) as crowd:
        slab = crowd.slab("tcp")
        begin = threading.Barrier(8)
        read: list[bytes] = []

        def work() -> None:
            begin.wait(WITHIN)
            read.extend(slab.read(4096) for _ in range(50))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(read) == 8 * 50


def test_event_loops_that_are_over_have_no_connection() -> None:
    with serving(session=3) as server:

        async def open_one() -> farpool.aio.Pool:
            return await farpool.aio.connect(server.tcp_url, transport="tcp")

        async def work() -> None:
            slab = await pool.allocate(64)
            await slab.write(b"x")
            await slab.free()

        pool = asyncio.run(open_one())
        for _ in range(9):
            asyncio.run(work())

        async def close() -> None:
            await pool.close()

        asyncio.run(close())


def test_of_strangers_at_the_descriptor_socket_the_oldest_give_way() -> None:
    """They may not even be clients: whoever can open the socket can connect."""
    with serving() as server, ExitStack() as stack:
        path = f"{server.url.removeprefix('unix://')}.cxl"
        strangers: list[socket.socket] = []
        for number in range(MAX_STRANGERS + 50):
            strangers.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
            strangers[-1].connect(path)
            if number % 50 == 49:  # less than the queue of connections holds
                with farpool.connect(server.url, transport="cxl", timeout=WITHIN) as pool:
                    assert pool.allocate(8).read(8) == bytes(8)
        assert select.select(strangers[:1], [], [], WITHIN)[0], "the oldest stranger is still there"
        assert strangers[0].recv(1) == b""
        assert "newer ones wait" in server.log()


@pytest.mark.parametrize("value", [0, -1, "many", 1.5, True, 1 << 40])
def test_a_limit_is_a_number(value: object) -> None:
    with pytest.raises(InvalidArgument, match=r"max_session_connections in \[transport_settings.tcp\] is a number"):
        connection_limits("tcp", {"max_session_connections": value}, session=1, share=0.5)
