"""Handles whose slab's memory was replaced: what becomes of the new memory when the handle is closed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tests.conftest import settle
from tests.unit.client.plain_transport import PlainRegion, PlainTransport
from tests.unit.client.scripted_server import WITHIN, ScriptedServer

from farpool.client import aio
from farpool.protocol.errors import DeadlineExceeded, StaleSlab
from farpool.protocol.messages import Attach, Detach

if TYPE_CHECKING:
    from farpool.transports.contract import Ticket

MakePool = Callable[[ThreadPoolExecutor], aio.Pool]


class AwaitedRegion(PlainRegion):
    """A region of which one close can be made to take its time."""

    meanwhile: Callable[[], object] | None = None

    def close(self) -> None:
        super().close()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()


@dataclass
class RecordingTransport(PlainTransport):
    """Keeps all regions that it has made."""

    regions: list[AwaitedRegion] = field(default_factory=list[AwaitedRegion])

    def attach(self, ticket: Ticket, seconds: float) -> PlainRegion:
        self.regions.append(AwaitedRegion(ticket))
        return self.regions[-1]


@pytest.fixture
def transport() -> RecordingTransport:
    """The client half that pools attach over."""
    return RecordingTransport()


async def test_closed_while_a_read_follows_it_lets_the_new_memory_go(
    server: ScriptedServer, transport: RecordingTransport, make_aio_pool: MakePool
) -> None:
    """The thread that follows ends after the old memory was let go of, and before the handle says that it is closed."""
    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        slab = await pool.allocate(8, lease="persistent")
        (old,) = transport.regions
        server.slabs[slab.id] = fresh = replace(server.slabs[slab.id], memory=1000)
        held = server.hold(Attach)
        old.closed = True  # as if its memory had been replaced: the region says that it is stale
        read = asyncio.create_task(slab.read(8))
        await asyncio.to_thread(server.seen, Attach)

        def follow() -> None:
            server.answer(*held[0])
            assert not settle(lambda: {slab.attachment.info.memory_generation}, {1000}, WITHIN)

        old.closed, old.meanwhile = False, follow
        await slab.close()
        with pytest.raises(StaleSlab):
            await read
        assert [region.closed for region in transport.regions] == [True, True]
        with pytest.raises(StaleSlab):
            await slab.read(8)
        await asyncio.to_thread(server.seen, Detach, 2)
        assert (fresh.id, fresh.memory_generation) in [(sent.id, sent.generation) for sent in server.seen(Detach)]


async def test_a_view_takes_no_longer_than_the_pools_timeout(server: ScriptedServer, make_aio_pool: MakePool) -> None:
    """Where that is less than an event loop stands still for at most."""
    async with make_aio_pool(ThreadPoolExecutor(4)) as pool:
        slab = await pool.allocate(8, lease="persistent")
        slab.attachment.owner.timeout = 0.02
        server.hold(Attach)
        assert isinstance(slab.attachment.region, PlainRegion)
        slab.attachment.region.closed = True
        with pytest.raises(DeadlineExceeded, match=r"within 0\.02 s"):
            slab.view()
        slab.attachment.region.closed = False
