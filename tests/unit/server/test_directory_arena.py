"""The directory arena: what it makes, what it refuses, what it never touches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from farpool.protocol.errors import PoolFull
from farpool.server.directory_arena import DirectoryArena, file_system_of
from farpool.server.settings import ConfigurationError

PAGE = os.sysconf("SC_PAGESIZE")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def arena(memory_folder: Path) -> Iterator[DirectoryArena]:
    made = DirectoryArena(str(memory_folder / "arena"))
    yield made
    made.close()


def test_a_slab_is_a_private_file_of_whole_reserved_pages(arena: DirectoryArena) -> None:
    arena.create(7, PAGE + 1)
    status = Path(arena.path, "slab-7").stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == 2 * PAGE == arena.charge(PAGE + 1)
    assert status.st_blocks * 512 >= 2 * PAGE
    assert Path(arena.path, "slab-7").read_bytes() == bytes(2 * PAGE)
    assert arena.slabs() == {7: 2 * PAGE}
    arena.remove(7)
    arena.remove(7)
    assert arena.slabs() == {}


def test_the_arena_is_private_and_in_memory(arena: DirectoryArena) -> None:
    assert stat.S_IMODE(Path(arena.path).stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(arena.control_path).stat().st_mode) == 0o700
    assert arena.file_system == "tmpfs"
    assert arena.volatile


def test_descriptors_have_the_rights_of_their_mode(arena: DirectoryArena) -> None:
    arena.create(1, PAGE)
    for mode, flag in (("r", os.O_RDONLY), ("rw", os.O_RDWR)):
        fd = arena.open_descriptor(1, "r" if mode == "r" else "rw")
        try:
            assert os.get_inheritable(fd) is False
            assert os.pread(fd, 1, 0) == b"\0"
            if flag == os.O_RDONLY:
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.pwrite(fd, b"x", 0)
        finally:
            os.close(fd)


def test_a_mapping_shares_the_file(arena: DirectoryArena) -> None:
    arena.create(1, 100)
    with arena.map(1, 100) as mapping:
        mapping.store(8, 5)
        assert int.from_bytes(Path(arena.path, "slab-1").read_bytes()[8:16], "little") == 5


def test_other_files_are_not_slabs(arena: DirectoryArena) -> None:
    for name in ("slab-0", "slab-01", "slab-1x", "slab--1", "notes.txt", "slab-99999999999999999999"):
        Path(arena.path, name).touch()
    Path(arena.path, "slab-5").symlink_to("notes.txt")
    Path(arena.path, "slab-6").mkdir()
    assert arena.slabs() == {}


def test_an_existing_file_is_never_reused(arena: DirectoryArena) -> None:
    Path(arena.path, "slab-3").write_bytes(b"kept")
    with pytest.raises(Exception, match="File exists"):
        arena.create(3, PAGE)
    assert Path(arena.path, "slab-3").read_bytes() == b"kept"


def test_a_second_server_is_refused_and_told_whose_arena_it_is(arena: DirectoryArena) -> None:
    with pytest.raises(ConfigurationError, match=rf"in use by the farpool server with pid {os.getpid()};"):
        DirectoryArena(arena.path)
    arena.close()
    arena.close()
    DirectoryArena(arena.path).close()


def test_a_refusal_leaves_no_descriptor(arena: DirectoryArena) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(ConfigurationError):
            DirectoryArena(arena.path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_no_private_directory_is_refused(memory_folder: Path) -> None:
    file = memory_folder / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match="name a directory"):
        DirectoryArena(str(file))
    link = memory_folder / "link"
    link.symlink_to(memory_folder)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        DirectoryArena(str(link))
    with pytest.raises(ConfigurationError, match="make the directory above it"):
        DirectoryArena(str(memory_folder / "missing" / "arena"))
    shared = memory_folder / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    with pytest.raises(ConfigurationError, match=f"chmod go-w {shared}"):
        DirectoryArena(str(shared))
    assert list(shared.iterdir()) == []


@needs_root
@pytest.mark.root
def test_an_arena_of_another_user_is_refused(memory_folder: Path) -> None:
    foreign = memory_folder / "foreign"
    foreign.mkdir()
    os.chown(foreign, 12345, 12345)
    with pytest.raises(ConfigurationError, match="belongs to uid 12345"):
        DirectoryArena(str(foreign))


@pytest.mark.root
def test_a_full_file_system_is_pool_full_with_numbers_and_leaves_no_file(small_file_system: Path) -> None:
    arena = DirectoryArena(str(small_file_system))
    try:
        assert arena.room == 1 << 20
        with pytest.raises(PoolFull, match="free of 1 MiB") as caught:
            arena.create(1, 2 << 20)
        assert caught.value.details["asked"] == 2 << 20
        assert arena.slabs() == {}
        arena.create(2, 900 << 10)
        with pytest.raises(PoolFull):
            arena.create(3, 900 << 10)
        assert not arena.keep_reserve()
        arena.remove(2)
        assert arena.keep_reserve()
        arena.use_reserve()
        arena.use_reserve()
    finally:
        arena.close()


@needs_root
@pytest.mark.root
def test_an_arena_that_this_user_cannot_write_is_refused(memory_folder: Path) -> None:
    memory_folder.chmod(0o711)
    closed = memory_folder / "closed"
    closed.mkdir(mode=0o500)
    os.chown(closed, 65534, 65534)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            DirectoryArena(str(closed))
        except ConfigurationError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        message = answer.read()
    os.waitpid(child, 0)
    assert message.startswith(f"arena {closed} is not writable by uid 65534; run: chmod u+rwx")
    assert "--arena" in message


def test_an_unlisted_device_has_no_known_file_system() -> None:
    assert file_system_of(os.makedev(4095, 1)) == ""
