"""Pools and file systems without room: ``PoolFull`` with its numbers, never a SIGBUS, and room again after a free."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.faults.conftest import TRANSPORTS, Serve

import farpool
from farpool.client.pool import Pool
from farpool.client.slab import Slab
from farpool.server.catalog import Catalog, SessionRow
from farpool.server.directory_arena import DirectoryArena
from farpool.server.generations import GenerationFile
from farpool.server.live_settings import LiveSettings
from farpool.server.reconcile import reconcile
from farpool.server.sessions import SessionTable
from farpool.server.settings import load_settings
from farpool.server.slabs import SlabTable

MIB = 1 << 20


@pytest.fixture
def small(as_root: None, folder: Path) -> Iterator[Path]:
    """A tmpfs of 8 MiB."""
    place = folder / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "farpool-test", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this container may not mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)  # a failed test may hold its mappings


@pytest.fixture
def words(small: Path) -> Iterator[GenerationFile]:
    """The words of slabs on that file system."""
    fd = os.open(small, os.O_RDONLY | os.O_DIRECTORY)
    with ExitStack() as undo:
        undo.callback(os.close, fd)
        found = GenerationFile(f"{small}/generations", fd)
        undo.callback(found.close)
        yield found


def fill(pool: Pool, nbytes: int) -> tuple[list[Slab], farpool.PoolFull]:
    """Allocate until there is no more room, and write every byte."""
    slabs: list[Slab] = []
    try:
        while True:
            slabs.append(pool.allocate(nbytes))
            slabs[-1].write(b"\xa5" * nbytes)
    except farpool.PoolFull as full:
        return slabs, full


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_full_pool_says_so_in_numbers(serve: Serve, transport: str) -> None:
    server = serve(capacity="8MiB")
    with farpool.connect(server.url, transport=transport) as pool, farpool.connect(server.url) as other:
        slabs, full = fill(pool, 3 * MIB)
        assert len(slabs) == 2
        assert full.details == {"asked": 3 * MIB, "free": 2 * MIB, "capacity": 8 * MIB}
        assert all(text in str(full) for text in ("3 MiB", "2 MiB", "8 MiB"))
        with pytest.raises(farpool.PoolFull):
            other.allocate(2 * MIB + 1)
        with pytest.raises(farpool.PoolFull):
            pool.allocate_many([MIB] * 3)
        pool.stat()  # behind the requests that free what was made
        assert other.stat().free == 2 * MIB, "an allocation of many that failed has kept some"
        slabs.pop().free()
        assert other.allocate(4 * MIB).read(8) == bytes(8)
        assert slabs[0].read(3 * MIB) == b"\xa5" * (3 * MIB)


def test_no_byte_is_given_twice_when_many_ask_at_once(serve: Serve) -> None:
    server = serve(capacity="16MiB")
    with (
        farpool.connect(server.url, transport="cxl") as first,
        farpool.connect(server.url, transport="tcp") as second,
        ThreadPoolExecutor(4) as threads,
    ):
        filled = threads.map(fill, [first, second] * 2, [300_000] * 4)
        slabs = [slab for part, _ in filled for slab in part]
        charged = 74 * 4096
        assert len(slabs) == 16 * MIB // charged
        assert first.stat().allocated == len(slabs) * charged
        for number, slab in enumerate(slabs):
            slab.write(number.to_bytes(8, "little"))
        assert [int.from_bytes(slab.read(8), "little") for slab in slabs] == list(range(len(slabs)))


@pytest.mark.root
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_full_file_system_is_pool_full_and_no_sigbus(small: Path, serve: Serve, transport: str) -> None:
    server = serve(arena=small, capacity="64MiB")
    with farpool.connect(server.url, transport=transport) as pool:
        slabs, full = fill(pool, 500_000)
        assert full.details["asked"] == 500_000
        assert full.details["free"] < 500_000
        assert full.details["capacity"] == 64 * MIB
        fill_the_rest(small)
        for nbytes in (1, 5_000, 30 * MIB):
            with pytest.raises(farpool.PoolFull):
                pool.allocate(nbytes)
        with farpool.connect(server.url, transport=transport) as other:
            other.open(slabs[0].id).write(b"still usable")
        assert slabs[0].read(12) == b"still usable"
        for slab in slabs:
            slab.write(b"\x5a" * slab.nbytes)
            assert slab.read(slab.nbytes) == b"\x5a" * slab.nbytes
        slabs.pop().free()
        (small / "other").unlink()
        assert pool.allocate(400_000).read(8) == bytes(8)


OPEN_AND_USE = """
import sys
import farpool

with farpool.connect(sys.argv[1], transport="cxl") as pool:
    slab = pool.open("made over tcp")
    slab.write(b"abc")
    assert slab.fetch_add(8, 1) == 0
    assert slab.read(3) == b"abc"
"""
"""In a process of its own, which a SIGBUS would end."""


@pytest.mark.root
def test_a_client_over_cxl_that_comes_when_all_is_full_meets_no_sigbus(small: Path) -> None:
    """It looks at its slab's words and at the mark of who waits: a page that nobody has touched before."""
    with (
        farpool.serve_embedded(arena=small, capacity="64MiB") as server,
        farpool.connect(server.url, transport="tcp") as pool,
    ):
        pool.allocate(4096, name="made over tcp")
        fill_the_rest(small)
        subprocess.run([sys.executable, "-c", OPEN_AND_USE, server.url], check=True, timeout=60)


@pytest.mark.root
def test_a_slot_whose_mark_has_no_memory_is_not_given(small: Path, words: GenerationFile) -> None:
    words.restore({})
    fill_the_rest(small)
    with (small / "other").open("r+b") as other:
        other.truncate(other.seek(0, os.SEEK_END) - (68 << 10))  # the words of 8,192 slots, and not their marks
    with pytest.raises(farpool.PoolFull):
        words.take_slot()
    (small / "other").unlink()
    words.watch(words.take_slot(), 9)


@pytest.mark.root
def test_a_start_that_finds_no_memory_for_marks_offers_none(small: Path, words: GenerationFile) -> None:
    """An earlier version left holes there: a client must not be told of them."""
    os.posix_fallocate(words_fd := os.open(words.path, os.O_RDWR), 0, 64 << 10)
    os.close(words_fd)
    fill_the_rest(small)
    words.restore({3: 7})
    assert (words.load(3), words.watched_offset) == (7, 0)
    words.watch(3, 9)
    words.store(words.take_slot(), 8)


@pytest.mark.root
def test_a_full_file_system_has_room_for_as_many_sessions_as_there_may_be(small: Path, serve: Serve) -> None:
    """Who comes may be the operator who frees something. Opening so many takes too long: words have pages."""
    server = serve(arena=small, capacity="64MiB", max_sessions=20_000)
    fill_the_rest(small)
    assert (small / ".farpool" / "generations").stat().st_blocks * 512 >= 20_000 * 8
    with farpool.connect(server.url, transport="tcp") as pool:
        pool.stat()


@pytest.mark.root
def test_a_start_on_a_full_file_system_goes_on_with_a_session_that_has_no_word(small: Path, folder: Path) -> None:
    """As one of an earlier version has none; the catalog itself finds room in pages that it has."""
    with ExitStack() as undo, capture_logs():
        arena = DirectoryArena(str(folder / "arena"))
        undo.callback(arena.close)
        catalog = Catalog(f"{arena.control_path}/catalog.sqlite", durable=False)
        undo.callback(catalog.close)
        catalog.insert_session(SessionRow(5, "default", b"h" * 32))
        fd = os.open(small, os.O_RDONLY | os.O_DIRECTORY)
        undo.callback(os.close, fd)
        words = GenerationFile(f"{small}/generations", fd)
        undo.callback(words.close)
        fill_the_rest(small)
        sessions = SessionTable(
            LiveSettings(load_settings()), lambda: 0.0, lambda at, act: None, lambda which, why: None
        )
        assert reconcile(catalog, arena, words, SlabTable(MIB), sessions, lambda: 0.0).sessions == 1
        assert [(session.id, session.word) for session in sessions.all()] == [(5, 0)]
        words.sessions.end(0)


@pytest.mark.root
def test_copies_that_find_no_room_leave_nothing_open(small: Path, serve: Serve) -> None:
    """The fixture sees what the server holds in the end."""
    server = serve(arena=small, capacity="64MiB")
    with farpool.connect(server.url, transport="tcp") as pool:
        slab = pool.allocate(MIB)
        fill_the_rest(small)
        for _ in range(5):
            with pytest.raises(farpool.PoolFull):
                slab.reserve(copy=True)
        (small / "other").unlink()
        slab.reserve(copy=True).commit()


def fill_the_rest(place: Path) -> None:
    """Take every page that is left, as another program might."""
    with (place / "other").open("wb", buffering=0) as other:
        try:
            while other.write(bytes(4096)):
                pass
        except OSError:
            return
