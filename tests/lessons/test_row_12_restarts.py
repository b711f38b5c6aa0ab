"""Lessons row 12: a restart emptied the metadata while old endpoints were still advertised.

Here the catalog is the one source of truth and outlives a crash, each start counts an epoch, and what was handed out
before it is worth nothing until it has been handed out again.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import farpool
from farpool.native.tcp_wire import ANSWER_BYTES, OPERATIONS, pack_hello, pack_request, unpack_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from farpool.server.embedded import EmbeddedServer

NBYTES = 64 << 10
OLD, NEW = b"\x11" * NBYTES, b"\x22" * NBYTES


def described(pool: farpool.Pool) -> dict[int, tuple[Any, ...]]:
    """Return what the server says of each slab that a restart must not change."""
    return {
        info.id: (info.name, info.nbytes, info.generation, info.lease, info.commits, info.state)
        for info in pool.slabs()
    }


def test_a_crash_empties_nothing(own_server: EmbeddedServer, transport: str) -> None:
    """Names, sizes, versions and bytes are there again, and handles of before reach them by themselves."""
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        lasting = pool.allocate(NBYTES, name="row 12", lease="persistent")
        with lasting.reserve() as draft:
            draft.write(NEW)
            draft.commit()
        leased = pool.allocate(NBYTES, name="row 12 leased", lease=600.0)
        leased.write(OLD)
        own = pool.allocate(NBYTES)
        own.write(OLD)
        before, allocated = described(pool), pool.stat().allocated
        own_server.kill()
        own_server.start()
        assert described(pool) == before
        assert pool.stat().allocated == allocated
        for slab, content in ((lasting, NEW), (leased, OLD), (own, OLD)):
            assert slab.read(NBYTES) == content
        with farpool.connect(own_server.url, transport=transport, timeout=30) as later:
            assert later.open("row 12", mode="r").read(NBYTES) == NEW
            assert later.open("row 12 leased", mode="r").read(NBYTES) == OLD


def test_each_start_is_an_epoch(own_server: EmbeddedServer, transport: str) -> None:
    with farpool.connect(own_server.url, transport=transport, timeout=30) as pool:
        starts: list[Callable[[], None]] = [own_server.kill, own_server.stop]
        for end in starts:
            before = pool.stat().epoch
            end()
            own_server.start()
            assert pool.stat().epoch == pool.epoch == before + 1
            with pool.allocate(64) as slab:
                assert slab.attachment.ticket.params["epoch"] == pool.epoch, "an endpoint says of which start it is"


def test_an_endpoint_of_before_serves_nothing(own_server: EmbeddedServer) -> None:
    """The secret and the handle of a session that ended with its server open no data connection."""
    pool = farpool.connect(own_server.url, transport="tcp", timeout=30)
    slab = pool.allocate(NBYTES, name="row 12", lease="persistent")
    slab.write(OLD)
    before = dict(slab.attachment.ticket.params)
    pool.close()
    own_server.restart()
    with farpool.connect(own_server.url, transport="tcp", timeout=30) as later:
        now = later.open("row 12", mode="r").attachment.ticket.params
        with (
            socket.create_connection((now["host"], now["port"]), timeout=10) as wire,
            wire.makefile("rb") as answers,
        ):
            read = pack_request(OPERATIONS["read"], handle=before["handle"], generation=slab.generation, length=8)
            wire.sendall(pack_hello(before["slot"], before["secret"]) + read)
            assert unpack_answer(answers.read(ANSWER_BYTES))["status"] != 0
            assert answers.read() == b""
