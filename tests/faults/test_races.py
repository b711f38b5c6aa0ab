"""Slabs that end while others find, read and write them: the right error or the right bytes, never another slab's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import pytest
from tests.faults.conftest import TRANSPORTS, Serve

import farpool
from farpool.client.pool import Pool

SECONDS = 1.5
NBYTES = 64 << 10


class Race:
    """Threads that run until the time is over; the first error ends them all."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.turns = 0
        self._threads: list[threading.Thread] = []
        self._end = time.monotonic() + SECONDS

    def run(self, turn: Callable[[], None], count: int = 1) -> None:
        """Add *count* threads that take one turn after the other."""

        def loop() -> None:
            try:
                while time.monotonic() < self._end and not self.errors:
                    turn()
                    self.turns += 1
            except BaseException as error:  # noqa: BLE001  it is raised in the end
                self.errors.append(error)

        self._threads += [threading.Thread(target=loop) for _ in range(count)]

    def finish(self) -> None:
        """Let the threads run to their end."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        assert self.turns


def block_of(slab_id: int) -> bytes:
    """Return the bytes that a slab of that id is filled with."""
    return slab_id.to_bytes(8, "little") * (NBYTES // 8)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_freed_slab_is_stale_and_never_another(serve: Serve, transport: str) -> None:
    server = serve()
    made: deque[int] = deque(maxlen=4)
    with (
        farpool.connect(server.url, transport=transport) as owner,
        farpool.connect(server.url, transport=transport) as reader,
        farpool.connect(server.url, transport="tcp") as writer,
    ):
        race = Race()
        race.run(lambda: make_and_free(owner, made), count=2)
        race.run(lambda: use(reader, made, writes=False), count=2)
        race.run(lambda: use(writer, made, writes=True))
        race.finish()
        assert owner.stat().slabs == 0


def make_and_free(pool: Pool, made: deque[int]) -> None:
    """Fill a slab with its id, let others know, and free it."""
    slab = pool.allocate(NBYTES)
    slab.write(block_of(slab.id))
    made.append(slab.id)
    assert slab.read(NBYTES) == block_of(slab.id)
    slab.free()
    with pytest.raises(farpool.StaleSlab):
        slab.read(8)


def use(pool: Pool, made: deque[int], *, writes: bool) -> None:
    """Open a slab that may be gone any moment, and see that its bytes are its own."""
    try:
        slab_id = made[-1]
        with pool.open(slab_id) as slab:
            while True:
                assert slab.read(NBYTES) == block_of(slab_id)
                if writes:
                    slab.write(block_of(slab_id))
    except (farpool.StaleSlab, farpool.SlabNotFound, IndexError):
        return
    except farpool.ServerLost:
        assert writes, "a read may be sent again, and is never lost"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sessions_come_and_go_under_each_other(serve: Serve, transport: str) -> None:
    server = serve()

    def live() -> None:
        with farpool.connect(server.url, transport=transport) as pool:
            slabs = pool.allocate_many([4096] * 3)
            for slab in slabs:
                slab.write(block_of(slab.id)[:4096])
            for slab in slabs:
                assert slab.read(4096) == block_of(slab.id)[:4096]
            slabs[0].free()

    race = Race()
    race.run(live, count=4)
    race.finish()
