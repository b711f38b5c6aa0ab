"""Start-up on what an earlier server left: an arena, a catalog and generation words that may disagree."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from farpool.native.mapping import Mapping
from farpool.server.catalog import Catalog, HolderRow, SessionRow, SlabRow
from farpool.server.deadlines import boot_id
from farpool.server.device_generations import DeviceGenerations
from farpool.server.directory_arena import DirectoryArena
from farpool.server.generations import GenerationFile
from farpool.server.reconcile import Restored, reconcile
from farpool.server.sessions import Session, SessionEvent, SessionTable
from farpool.server.slabs import SlabTable
from farpool.transports.cxl.superblock import SESSION_WORDS, words_end

CAPACITY = 1 << 20


class Times:
    session_timeout = 10.0
    disconnect_grace = 1.0
    resume_grace = 30.0


def ignore_end(session: Session, event: SessionEvent) -> None:
    """Nobody looks."""


@dataclass
class Parts:
    """What a server is made of, as far as a start goes."""

    arena: DirectoryArena
    catalog: Catalog
    generations: GenerationFile
    slabs: SlabTable
    sessions: SessionTable

    def start(self) -> Restored:
        return reconcile(self.catalog, self.arena, self.generations, self.slabs, self.sessions, clock=lambda: 500.0)


@pytest.fixture
def parts(memory_folder: Path) -> Iterator[Parts]:
    arena = DirectoryArena(str(memory_folder / "arena"))
    with contextlib.ExitStack() as undo:
        undo.callback(arena.close)
        catalog = Catalog(f"{arena.control_path}/catalog.sqlite", durable=False)
        undo.callback(catalog.close)
        words = GenerationFile(f"{arena.control_path}/generations", arena.control_fd)
        undo.callback(words.close)
        sessions = SessionTable(Times(), lambda: 500.0, lambda deadline, expire: None, ignore_end)
        catalog.set_meta("boot_id", boot_id())
        yield Parts(arena, catalog, words, SlabTable(CAPACITY), sessions)


def slab(
    number: int,
    lease: str = "persistent",
    *,
    owner: int | None = None,
    ttl: float | None = None,
    deadline: float | None = None,
) -> SlabRow:
    return SlabRow(
        id=number,
        generation=number + 10,
        slot=number,
        nbytes=5000,
        tenant="default",
        name=f"slab {number}",
        lease=lease,
        ttl=ttl,
        owner=owner,
        deadline=deadline,
    )


def test_an_empty_arena_starts_empty(parts: Parts) -> None:
    assert parts.start() == Restored(slabs=0, sessions=0, reclaiming=0, dropped=0, orphans=0)


def test_known_slabs_come_back_with_bytes_name_slot_and_word(parts: Parts) -> None:
    parts.arena.create(1, 5000)
    Path(parts.arena.path, "slab-1").write_bytes(b"mine" + bytes(8188))
    parts.catalog.insert_slab(slab(1))
    assert parts.start().slabs == 1
    found = parts.slabs.get_named("default", "slab 1")
    assert (found.id, found.generation, found.slot, found.nbytes) == (1, 11, 1, 5000)
    assert bytes(memoryview(found.memory())[:4]) == b"mine"
    found.close_memory()
    assert parts.generations.load(1) == 11
    assert parts.slabs.allocated == 8192
    assert parts.generations.take_slot() == 0


def test_files_without_a_row_are_removed_and_nothing_else(parts: Parts) -> None:
    parts.arena.create(7, 4096)
    Path(parts.arena.path, "notes.txt").write_text("kept")
    assert parts.start().orphans == 1
    assert sorted(path.name for path in Path(parts.arena.path).iterdir()) == [".farpool", "notes.txt"]


def test_rows_without_whole_memory_are_dropped(parts: Parts) -> None:
    parts.catalog.insert_slab(slab(1))
    parts.catalog.insert_slab(slab(2))
    Path(parts.arena.path, "slab-2").write_bytes(b"short")
    assert parts.start() == Restored(slabs=0, sessions=0, reclaiming=0, dropped=2, orphans=0)
    assert parts.catalog.slabs() == []
    assert parts.arena.slabs() == {}


def test_words_of_nobody_are_zeroed(parts: Parts) -> None:
    parts.generations.restore({})
    for _ in range(4):
        parts.generations.take_slot()
    for slot in range(4):
        parts.generations.store(slot, 99)
    parts.arena.create(2, 5000)
    parts.catalog.insert_slab(slab(2))
    parts.start()
    assert [parts.generations.load(slot) for slot in range(4)] == [0, 0, 12, 0]


def test_a_session_without_a_word_comes_back_without_one(parts: Parts, memory_folder: Path) -> None:
    """Its slabs are worth more than the look that tells it of its end."""
    header = memory_folder / "header"
    header.write_bytes(bytes(words_end(8)))
    with header.open("r+b") as file, Mapping(file.fileno(), words_end(8), writable=True) as mapping:
        generations = DeviceGenerations(mapping, 8, "header", incoherent=False)
        generations.restore_sessions(set())
        with parts.catalog.together():
            for number in range(1, SESSION_WORDS + 2):
                parts.catalog.insert_session(SessionRow(number, "default", b"h" * 32))
        start = partial(reconcile, parts.catalog, parts.arena, generations, parts.slabs, parts.sessions)
        with capture_logs():
            assert start(clock=lambda: 500.0).sessions == SESSION_WORDS + 1
        restored = parts.sessions.all()
        assert len({session.word for session in restored}) == SESSION_WORDS + 1
        (without,) = (session for session in restored if not session.word)
        generations.sessions.end(without.word)
        assert all(generations.load(session.word // 8) == session.id for session in restored if session.word)


def test_no_number_is_given_again_though_the_catalog_is_an_older_copy(parts: Parts) -> None:
    """As a power loss or a restored state directory leaves it: the words know what was given since."""
    parts.generations.restore({})
    for generation in (7000, 5000):
        parts.generations.store(parts.generations.take_slot(), generation)
    parts.generations.restore_sessions(set())
    for number in (3000, 6000, 4000):
        parts.generations.sessions.begin(number)
    parts.generations.watch(0, (1 << 64) - 1)  # this is neither
    parts.start()
    assert parts.catalog.next_number("next_generation") == 7001
    assert parts.catalog.next_number("next_session") == 6001


def test_a_start_that_ends_early_has_noted_the_numbers_before_the_words_go(parts: Parts) -> None:
    parts.generations.restore({})
    parts.generations.store(parts.generations.take_slot(), 7000)
    parts.start()
    assert parts.generations.load(0) == 0
    assert parts.start() == Restored(slabs=0, sessions=0, reclaiming=0, dropped=0, orphans=0)
    assert parts.catalog.meta_int("next_generation", 1) == 7001


def test_numbers_go_on_where_the_catalog_knows_more(parts: Parts) -> None:
    parts.catalog.set_meta("next_session", 9000)
    parts.generations.restore_sessions(set())
    parts.generations.sessions.begin(3000)
    parts.start()
    assert parts.catalog.next_number("next_session") == 9000


def test_session_slabs_wait_for_their_session(parts: Parts) -> None:
    for number, owner in ((1, 5), (2, 6)):
        parts.arena.create(number, 5000)
        parts.catalog.insert_slab(slab(number, "session", owner=owner))
    parts.catalog.insert_session(SessionRow(5, "default", b"h" * 32))
    assert parts.start() == Restored(slabs=1, sessions=1, reclaiming=0, dropped=1, orphans=0)
    assert [owned.id for owned in parts.slabs.owned_by(5)] == [1]
    session = parts.sessions.get(5)
    assert session is not None
    assert parts.sessions.deadline(session) == 530.0


def test_leases_without_an_owner_keep_their_deadline(parts: Parts) -> None:
    parts.arena.create(1, 5000)
    parts.catalog.insert_slab(slab(1, "ttl", ttl=60.0))
    parts.catalog.set_owner(1, None, 512.5)
    parts.start()
    found = parts.slabs.get("default", 1)
    assert (found.ttl, found.owner, found.deadline) == (60.0, None, 512.5)


def test_a_deadline_of_another_boot_begins_anew(parts: Parts) -> None:
    parts.catalog.set_meta("boot_id", "another")
    parts.arena.create(1, 5000)
    parts.catalog.insert_slab(slab(1, "ttl", ttl=60.0, deadline=1.0), HolderRow(1, 5, "cxl", "rw"))
    parts.catalog.insert_session(SessionRow(5, "default", b"h" * 32))
    parts.start()
    found = parts.slabs.get("default", 1)
    assert found.deadline == 560.0
    assert found.holders == {}
    assert parts.catalog.meta_text("boot_id") == boot_id()


def test_holders_survive_with_their_sessions(parts: Parts) -> None:
    parts.arena.create(1, 5000)
    parts.catalog.insert_slab(slab(1), HolderRow(1, 5, "cxl", "r"))
    parts.catalog.insert_holder(HolderRow(1, 6, "cxl", "rw"))
    parts.catalog.insert_session(SessionRow(5, "default", b"h" * 32))
    parts.start()
    assert parts.slabs.get("default", 1).holders == {(5, "cxl"): "r"}


def test_freed_slabs_stay_charged_while_somebody_holds_them(parts: Parts) -> None:
    """Whoever that is: of 1 the catalog knows a holder, of 2 none, and that of 3 has let go without a word."""
    for number, holder in ((1, 5), (2, 6), (3, 5)):
        parts.arena.create(number, 5000)
        parts.catalog.insert_slab(slab(number, "session", owner=holder), HolderRow(number, holder, "cxl", "rw"))
        parts.catalog.mark_reclaiming(number)
    parts.catalog.insert_session(SessionRow(5, "default", b"h" * 32))
    held = [parts.arena.open_descriptor(number, "r") for number in (1, 2)]
    try:
        assert parts.start() == Restored(slabs=0, sessions=1, reclaiming=2, dropped=0, orphans=0)
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert parts.arena.slabs() == {1: 8192, 2: 8192}
    assert parts.slabs.reclaiming == parts.slabs.account("default").nbytes == 16384
    assert parts.generations.load(1) == 0
    assert parts.generations.take_slot() == 0
    found = parts.slabs.get_held(1, 11)
    assert found is not None
    assert found.state == "reclaiming"


def test_a_slab_whose_owner_is_gone_stays_charged_while_somebody_holds_it(parts: Parts) -> None:
    parts.arena.create(1, 5000)
    parts.catalog.insert_slab(slab(1, "session", owner=5))
    held = parts.arena.open_descriptor(1, "rw")
    try:
        assert parts.start() == Restored(slabs=0, sessions=0, reclaiming=1, dropped=1, orphans=0)
        assert [(row.reclaiming, row.name) for row in parts.catalog.slabs()] == [(1, None)]
    finally:
        os.close(held)


def test_without_the_kernels_word_freed_slabs_stay_charged_while_a_holder_may_come_back(parts: Parts) -> None:
    parts.arena.sees_holders = False
    for number, holder in ((1, 5), (2, 6)):
        parts.arena.create(number, 5000)
        parts.catalog.insert_slab(slab(number, "session", owner=holder), HolderRow(number, holder, "cxl", "rw"))
        parts.catalog.mark_reclaiming(number)
    parts.catalog.insert_session(SessionRow(5, "default", b"h" * 32))
    assert parts.start() == Restored(slabs=0, sessions=1, reclaiming=1, dropped=0, orphans=0)
    assert parts.arena.slabs() == {1: 8192}
    assert parts.slabs.reclaiming == 8192
