"""A client that was stopped for too long has lost its slabs, and what it stores when it wakes up reaches nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import farpool
from farpool.server.embedded import EmbeddedServer

if TYPE_CHECKING:
    import subprocess

    from tests.conformance.conftest import StartChild
    from tests.conformance.variants import Variant

SESSION_TIMEOUT = 2.0
WITHIN = 60.0
"""Seconds in which a session that is silent has ended; only a failure takes so long."""

NBYTES = 4 << 20
OURS = b"\x11" * NBYTES
SHARED_BYTES = 4096
LATE = 0xEEEE
LINE_BYTES = 64
LARGE_BYTES = 16 << 20
PIECE_BYTES = 128 << 10
"""Most bytes of a write that go on after its session's end, as docs/cxl.md says."""


@pytest.fixture
def impatient(variant: Variant) -> Iterator[EmbeddedServer]:
    """A server that ends silent sessions soon."""
    with ExitStack() as undo:
        settings = variant.serving(undo)
        served = farpool.serve_embedded(
            capacity="64MiB", transports=[variant.transport], session_timeout=SESSION_TIMEOUT, **settings
        )
        yield undo.enter_context(served)


def line_of(child: subprocess.Popen[str]) -> list[str]:
    assert child.stdout is not None
    return child.stdout.readline().split()


def ends_well(child: subprocess.Popen[str]) -> None:
    _, errors = child.communicate(timeout=WITHIN)
    assert child.returncode == 0, errors


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def wait_for(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN
    while not true():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def wait_until_gone(pool: farpool.Pool, slab_id: int) -> None:
    deadline = time.monotonic() + WITHIN
    while any(info.id == slab_id and info.state != "reclaiming" for info in pool.slabs()):
        assert time.monotonic() < deadline, "the slab lives on"
        time.sleep(0.02)


def open_alone(pool: farpool.Pool, name: str) -> farpool.Slab:
    deadline = time.monotonic() + WITHIN
    while True:
        try:
            return pool.open(name, exclusive=True)
        except farpool.SlabBusy:
            assert time.monotonic() < deadline, "the session that holds it lives on"
            time.sleep(0.02)


def test_late_stores_reach_nobody(impatient: EmbeddedServer, transport: str, start_child: StartChild) -> None:
    with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as pool:
        child = start_child("overwrite", impatient.url, transport)
        ready, slab_id = line_of(child)
        assert ready == "ready"
        with pool.open(int(slab_id)) as shared:
            stop(child)
            wait_until_gone(pool, int(slab_id))
            with pytest.raises(farpool.StaleSlab):
                shared.write(b"late")
        mine = [pool.allocate(NBYTES) for _ in range(4)]  # of the same memory, wherever it may be used again
        for slab in mine:
            assert slab.read(NBYTES) == bytes(NBYTES)
            slab.write(OURS)
        child.send_signal(signal.SIGCONT)
        assert line_of(child) == ["stale", "again"]
        for slab in mine:
            assert slab.read(NBYTES) == OURS
            slab.free()
        ends_well(child)


def test_what_others_share_is_not_stored_to_by_who_was_away(
    impatient: EmbeddedServer, transport: str, start_child: StartChild
) -> None:
    """It wakes up in the middle of its stores, before it can have heard of its session's end."""
    with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as pool:
        shared = pool.allocate(SHARED_BYTES, name="shared", lease="persistent")
        child = start_child("store_all_over", impatient.url, transport, "shared")
        assert line_of(child) == ["ready"]
        wait_for(lambda: shared.load(SHARED_BYTES - 8) == LATE, "the child stores")
        stop(child)
        wait_for(lambda: pool.stat().sessions == 1, "the child's session has ended")
        shared.write(OURS[:SHARED_BYTES])
        child.send_signal(signal.SIGCONT)
        assert line_of(child) == ["StaleSlab"]
        found = shared.read(SHARED_BYTES)
        late = [at for at in range(0, SHARED_BYTES, LINE_BYTES) if found[at : at + LINE_BYTES] != OURS[:LINE_BYTES]]
        assert len(late) <= 1, late  # a store that was past its check as the child was stopped
        shared.free()
        ends_well(child)


def test_a_large_write_that_was_stopped_in_its_middle_does_not_go_on(
    impatient: EmbeddedServer, transport: str, start_child: StartChild
) -> None:
    """What is under way as the child is stopped may land, and no more of the write."""
    with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as pool:
        shared = pool.allocate(LARGE_BYTES, name="shared", lease="persistent")
        child = start_child("write_all_over", impatient.url, transport, "shared")
        assert line_of(child) == ["ready"]
        wait_for(lambda: shared.load(LARGE_BYTES - 8) != 0, "the child writes")
        stop_in_a_write(child, shared, certain=transport == "cxl")
        wait_for(lambda: pool.stat().sessions == 1, "the child's session has ended")
        ours = b"\x11" * LARGE_BYTES
        shared.write(ours)
        child.send_signal(signal.SIGCONT)
        assert line_of(child) == ["StaleSlab"]
        found = shared.read(LARGE_BYTES)
        kept = len(found) - len(found.lstrip(b"\x11")) + len(found) - len(found.rstrip(b"\x11"))
        assert found == ours or LARGE_BYTES - kept <= PIECE_BYTES, f"{LARGE_BYTES - kept} bytes were stored to"
        shared.free()
        ends_well(child)


def stop_in_a_write(child: subprocess.Popen[str], slab: farpool.Slab, *, certain: bool) -> None:
    """Stop a child that overwrites all of *slab* in the middle of that; elsewhere a write may finish without it."""
    for _ in range(100):
        stop(child)
        if 0.25 < slab.read(slab.nbytes).count(b"\xee") / slab.nbytes < 0.75:
            return
        child.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    stop(child)
    assert not certain, "the child was never stopped in the middle of a write"


def test_who_has_a_slab_alone_has_it_where_a_stopped_holder_cannot_reach(
    impatient: EmbeddedServer, transport: str, start_child: StartChild
) -> None:
    with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as pool:
        pool.allocate(NBYTES, name="left", lease="persistent").close()
        child = start_child("overwrite", impatient.url, transport, "left")
        assert line_of(child)[0] == "ready"
        stop(child)
        mine = open_alone(pool, "left")
        assert set(mine.read(NBYTES)) <= {0, 1, 0xEE, 0xEF}  # what it wrote, and its counter on top of that
        mine.write(OURS)
        child.send_signal(signal.SIGCONT)
        assert line_of(child) == ["stale", "again"]
        assert mine.read(NBYTES) == OURS
        mine.free()
        ends_well(child)


def test_who_was_away_comes_too_late_though_nobody_has_the_slab_any_more(
    impatient: EmbeddedServer, transport: str, start_child: StartChild
) -> None:
    """Another had it alone meanwhile, and let go of it: what the first has computed from what it read is overtaken."""
    with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as pool:
        for name in ("owned", "shared"):
            pool.allocate(4096, name=name, lease="persistent").close()
        child = start_child("own_and_share", impatient.url, transport, "owned", "shared")
        assert line_of(child) == ["ready"]
        stop(child)
        with open_alone(pool, "owned") as mine:
            mine.store(8, 100)
        with pool.open("shared") as shared:
            shared.store(8, 2)
        assert child.stdin is not None
        child.send_signal(signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert line_of(child) == ["StaleSlab", "False"]
        assert line_of(child) == ["StaleSlab", "StaleSlab"]
        assert line_of(child) == ["StaleSlab", "StaleSlab"]
        assert pool.open("owned").load(8) == 100
        ends_well(child)


def test_who_holds_the_interpreter_keeps_its_session(
    impatient: EmbeddedServer, transport: str, start_child: StartChild
) -> None:
    child = start_child("hold_the_interpreter", impatient.url, transport, 2.5 * SESSION_TIMEOUT)
    assert line_of(child) == ["ready"]
    assert line_of(child) == ["kept"]
    ends_well(child)


def test_the_end_of_a_lease_revokes_whoever_holds(impatient: EmbeddedServer, transport: str) -> None:
    with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as holder:
        with farpool.connect(impatient.url, transport=transport, timeout=WITHIN) as owner:
            held = holder.open(owner.allocate(4096, lease=0.5).id, mode="r")
            assert held.read(4) == bytes(4)
        wait_until_gone(holder, held.id)
        with pytest.raises(farpool.StaleSlab):
            held.read(4)
        assert holder.stat().slabs == 0
