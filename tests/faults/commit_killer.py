"""Kill a server's parts at every point of a commit, start them anew, and look: ``python commit_killer.py FOLDER KIND``.

Each round is a process of its own that is killed at its next function call, the first round at the first call that the
commit makes. The last round is the one in which the commit came to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from farpool.protocol.checksums import block_of
from farpool.protocol.messages import Commit, DraftEnd
from farpool.server.arena import Arena
from farpool.server.catalog import Catalog
from farpool.server.commits import Commits
from farpool.server.dataplanes import DataPlanes
from farpool.server.deadlines import Deadlines, boot_clock
from farpool.server.device_arena import DeviceArena
from farpool.server.directory_arena import DirectoryArena
from farpool.server.lifecycle import Lifecycle
from farpool.server.reconcile import reconcile
from farpool.server.sessions import Session, SessionEvent
from farpool.server.slab_bytes import summer
from farpool.server.slabs import Slab

NBYTES = 100_000
CAPACITY = 64 << 20
DEVICE_BYTES = 32 << 20
OLD, NEW = b"\x11", b"\x22"


class Times:
    """Settings that this does not look at."""

    session_timeout = 10.0
    disconnect_grace = 1.0
    resume_grace = 30.0


class Nobody:
    """A client that hears nothing."""

    def send(self, frame: bytes) -> None:
        """Take a frame."""

    def close(self, reason: str) -> None:
        """Go."""


def open_arena(folder: Path, kind: str) -> Arena:
    if kind == "directory":
        return DirectoryArena(str(folder / "arena"))
    return DeviceArena(str(folder / "device"), str(folder / "state"), incoherent=False)


@contextlib.contextmanager
def life_in(folder: Path, kind: str) -> Generator[Lifecycle]:
    """Start a server's parts on what there is."""
    with contextlib.ExitStack() as undo:
        arena = open_arena(folder, kind)
        undo.callback(arena.close)
        catalog = Catalog(f"{arena.control_path}/catalog.sqlite", durable=False)
        undo.callback(catalog.close)
        generations = arena.open_generations()
        undo.callback(generations.close)
        life = Lifecycle(
            arena=arena,
            catalog=catalog,
            generations=generations,
            planes=DataPlanes(),
            timing=Times(),
            capacity=CAPACITY,
            clock=boot_clock,
            deadlines=Deadlines(boot_clock, asyncio.get_running_loop().call_later, lambda: None),
            executor=undo.enter_context(ThreadPoolExecutor(1)),
        )
        undo.callback(life.close_memory)
        reconcile(catalog, arena, generations, life.slabs, life.sessions, boot_clock)
        life.watch_restored()
        yield life


def make(life: Lifecycle, session: Session, name: str | None, byte: bytes, base: Slab | None = None) -> Slab:
    lease = "persistent" if base is None else "session"
    slab = life.making.prepare(session, NBYTES, name, lease, draft_of=None if base is None else base.id)
    life.making.make(slab)
    life.admit(session, slab, "")
    with memoryview(slab.memory()) as view:
        view[:NBYTES] = byte * NBYTES
    return slab


async def commit(folder: Path, kind: str, calls: int) -> None:
    """Commit two drafts together, and be killed at that call."""
    with life_in(folder, kind) as life:
        session = life.open_session("default", Nobody(), 10, None)
        slabs = [make(life, session, name, OLD) for name in ("a", "b")]
        drafts = [make(life, session, None, NEW, base) for base in slabs]
        request = Commit(drafts=[DraftEnd(id=draft.id, generation=draft.life) for draft in drafts])
        count = 0

        def kill_at_last(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += 1
            if count == calls:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(kill_at_last)
        await Commits(life, lambda _, __: None).commit(session, request)
        sys.setprofile(None)


async def look(folder: Path, kind: str) -> bytes:
    """Return which version both slabs have; raise if they have not the same, or anything is left over."""
    with life_in(folder, kind) as life:
        slabs = [life.slabs.get_named("default", name) for name in ("a", "b")]
        found = {bytes(memoryview(slab.memory())[:NBYTES]) for slab in slabs}
        assert found in ({OLD * NBYTES}, {NEW * NBYTES}), "a mix"
        (version,) = {data[:1] for data in found}
        for slab in slabs:
            assert life.generations.load(slab.slot) == slab.generation
            assert slab.commits == (version == NEW)
            if slab.checksums.block:
                assert slab.checksums.words == summer(life.arena, slab.memory_id, NBYTES, block_of(NBYTES))()
        for session in life.sessions.all():
            life.sessions.end(session, SessionEvent.TOO_LATE)
        assert not life.slabs.reclaiming
        assert life.slabs.allocated == sum(slab.charged for slab in slabs), "bytes that belong to nobody"
        assert set(life.arena.slabs()) == {slab.memory_id for slab in slabs}, "memory that belongs to nobody"
        return version


def main(folder: Path, kind: str) -> None:
    """Kill at one call after the other until there is none left."""
    seen: list[bytes] = []
    for calls in range(1, 1_000_000, 13):
        place = folder / "round"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(mode=0o700)
        if kind == "device":
            with (place / "device").open("wb") as file:
                file.truncate(DEVICE_BYTES)
        child = os.fork()  # of a process with one thread
        if child == 0:
            try:
                asyncio.run(commit(place, kind, calls))
            finally:
                os._exit(0 if sys.exc_info()[0] is None else 1)
        _, status = os.waitpid(child, 0)
        seen.append(asyncio.run(look(place, kind)))
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
    assert seen[0] == OLD
    assert seen[-1] == NEW
    print(len(seen), "rounds,", seen.count(OLD), "old")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
