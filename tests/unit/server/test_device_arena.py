"""An arena on a device: whose it takes and whose not, and what it makes of its extents."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import farpool
from farpool.cli.main import main
from farpool.protocol.errors import PoolFull, SlabNotFound
from farpool.server.catalog import SlabRow
from farpool.server.device_arena import DeviceArena
from farpool.server.settings import ConfigurationError
from farpool.transports.cxl.superblock import PAGE_BYTES, Superblock

UNIT = 2 << 20
FIELDS_BYTES = 72
"""Of a superblock, before its checksum."""
HOLD_AND_SAY = """
import sys, farpool
pool = farpool.connect(sys.argv[1], transport="cxl")
slab = pool.open("shared")
view = slab.view()
print("held", flush=True)
if sys.argv[2] == "leave":
    pool.close()
    print("closed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def device(memory_folder: Path) -> Path:
    path = memory_folder / "device"
    with path.open("wb") as file:
        file.truncate(8 * UNIT)
    return path


@pytest.fixture
def state(memory_folder: Path) -> Path:
    return memory_folder / "state"


Open = Callable[..., DeviceArena]


@pytest.fixture
def opened(device: Path, state: Path) -> Iterator[Open]:
    with contextlib.ExitStack() as undo:

        def opened(path: Path = device, folder: Path = state, *, incoherent: bool = False) -> DeviceArena:
            arena = DeviceArena(str(path), str(folder), incoherent=incoherent)
            undo.callback(arena.close)
            return arena

        yield opened


def refusal(opened: Open, *arguments: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        opened(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Whose device -----------------------------------------------------------------------------------------


def test_a_blank_device_is_taken_and_known_again(opened: Open, state: Path) -> None:
    first = opened()
    number, incarnation = first.device.arena, first.device.incarnation
    assert Path(first.control_path) == state / number.hex()
    first.close()
    second = opened()
    assert second.device.arena == number
    assert second.device.incarnation != incarnation


def test_the_device_of_another_server_is_refused(opened: Open, memory_folder: Path) -> None:
    opened().close()
    message = refusal(opened, memory_folder / "device", memory_folder / "elsewhere")
    assert "foreign arena" in message
    assert f"run: farpool format --yes {memory_folder}/device" in message


def test_what_is_no_arena_is_refused_and_kept(opened: Open, device: Path) -> None:
    with device.open("r+b") as file:
        file.write(b"somebody's database")
    assert "something else" in refusal(opened)
    assert device.read_bytes().startswith(b"somebody's database")


@pytest.mark.parametrize("at", [9, 20, 60, 72])
def test_a_damaged_superblock_is_refused(opened: Open, device: Path, at: int) -> None:
    opened().close()
    with device.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    assert "damaged" in refusal(opened)


def test_the_layout_of_an_earlier_version_is_refused_until_it_is_formatted(
    opened: Open, device: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its extents begin where words of sessions are now, so that nothing of it can be kept."""
    first = opened()
    first.close()
    set_version(device, 1)
    before = device.read_bytes()
    message = refusal(opened)
    assert "formatted by an earlier version of farpool" in message
    assert "its slabs cannot be carried over" in message
    assert f"run: farpool format --yes {device}" in message
    assert device.read_bytes() == before
    assert main(["format", str(device)]) != 0
    assert "earlier version" in capsys.readouterr().err
    assert main(["format", "--yes", str(device)]) == 0
    second = opened()
    assert second.device.arena != first.device.arena
    assert not Path(first.control_path).exists()


def test_the_layout_of_a_later_version_is_refused(opened: Open, device: Path) -> None:
    opened().close()
    set_version(device, 200)
    assert "formatted by a later version of farpool" in refusal(opened)


def set_version(device: Path, version: int) -> None:
    """Write another version into a superblock, with a checksum that is right."""
    with device.open("r+b") as file:
        fields = bytearray(file.read(FIELDS_BYTES))
        fields[8:12] = version.to_bytes(4, "little")
        file.seek(0)
        file.write(fields + zlib.crc32(fields).to_bytes(4, "little"))


def test_what_is_no_superblock_is_refused() -> None:
    with pytest.raises(farpool.FarpoolError, match="something else"):
        Superblock.decode(b"x" * PAGE_BYTES)
    assert Superblock.decode(bytes(PAGE_BYTES)) is None


def test_a_device_of_another_size_is_refused(opened: Open, device: Path) -> None:
    opened().close()
    os.truncate(device, 6 * UNIT)
    assert "its arena was made for 16 MiB" in refusal(opened)


def test_a_device_that_was_wiped_is_refused_but_not_after_a_restart_of_the_machine(
    opened: Open, device: Path, state: Path
) -> None:
    first = opened()
    first.close()
    with device.open("r+b") as file:
        file.write(bytes(PAGE_BYTES))
    assert "is blank, but was the arena" in refusal(opened)
    note = Path(first.control_path) / "device.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"boot_id": "another"}))
    again = opened()
    assert again.device.arena != first.device.arena
    assert [folder.name for folder in state.iterdir()] == [again.device.arena.hex()]


def test_one_server_at_a_time(opened: Open, memory_folder: Path) -> None:
    opened()
    message = refusal(opened, memory_folder / "device", memory_folder / "elsewhere")
    assert f"busy: the farpool server with pid {os.getpid()} has it" in message


def test_a_small_device_is_refused(opened: Open, device: Path) -> None:
    os.truncate(device, 2 * UNIT - 1)
    assert "too small: 2 MiB, an arena there needs 4 MiB at least" in refusal(opened)


def test_a_refusal_leaves_no_descriptor(opened: Open, device: Path) -> None:
    os.truncate(device, UNIT)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        refusal(opened)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# Extents ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("incoherent", [False, True])
def test_a_slab_is_a_zeroed_extent(opened: Open, device: Path, *, incoherent: bool) -> None:
    with device.open("r+b") as file:
        file.seek(UNIT)
        file.write(b"\xff" * (7 * UNIT))
    arena = opened(incoherent=incoherent)
    arena.create(1, 100)
    arena.create(2, UNIT + 1)
    assert (arena.offset(1), arena.offset(2)) == (UNIT, 2 * UNIT)
    assert arena.slabs() == {1: UNIT, 2: 2 * UNIT}
    with arena.map(2, UNIT + 1) as mapping:
        assert bytes(memoryview(mapping)) == bytes(2 * UNIT)
        mapping.store(8, 5)
    with device.open("rb") as file:
        file.seek(2 * UNIT + 8)
        assert file.read(1) == b"\x05"
        assert file.read()[-1:] == b"\xff"  # of nobody's extent


def test_a_full_device_is_pool_full_with_its_numbers(opened: Open) -> None:
    arena = opened()
    for number in range(7):
        arena.create(number + 1, UNIT)
    with pytest.raises(PoolFull, match="0 B free of 14 MiB"):
        arena.create(9, 1)
    for number in (1, 3):
        arena.remove(number)
        arena.reclaim(number)
        arena.reclaim(number)
    with pytest.raises(PoolFull, match="4 MiB free in pieces of at most 2 MiB") as caught:
        arena.create(9, 2 * UNIT)
    assert caught.value.details == {"asked": 2 * UNIT, "file_system_free": UNIT}
    with pytest.raises(SlabNotFound):
        arena.offset(9)


def test_what_the_catalog_knows_comes_back(opened: Open) -> None:
    def row(number: int, extent: int, **changes: object) -> SlabRow:
        values = {"generation": 10 + number, "slot": 512 + number, "nbytes": UNIT, "tenant": "default", "name": None}
        values |= {"lease": "persistent", "ttl": None, "owner": None, "deadline": None, "extent": extent}
        return SlabRow(id=number, **(values | changes))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    arena = opened()
    words = arena.open_generations()
    words.store(513, 11)
    words.store(514, 99)  # another slab's: this one had ended
    arena.recover([row(1, UNIT), row(2, 2 * UNIT), row(3, 3 * UNIT, reclaiming=1)], words)
    assert arena.slabs() == {1: UNIT}
    arena.create(4, UNIT)
    assert arena.offset(4) == 4 * UNIT
    with pytest.raises(ConfigurationError, match="contradicts itself"):
        arena.recover([row(5, UNIT)], words)


# Who may still map it ---------------------------------------------------------------------------------


@pytest.fixture
def served(device: Path, state: Path) -> Iterator[farpool.Pool]:
    settings = {"arena": device, "state_dir": str(state), "capacity": "14MiB", "disconnect_grace": 0.2}
    with farpool.serve_embedded(**settings) as server, farpool.connect(server.url) as pool:  # type: ignore[arg-type]
        yield pool


@pytest.fixture
def start(served: farpool.Pool) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    with contextlib.ExitStack() as undo:

        def start(how: str) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", HOLD_AND_SAY, served.url, how]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            undo.enter_context(child)
            undo.callback(child.kill)
            return child

        yield start


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        subprocess.run(["true"], check=True)
    pytest.fail("it never came about")


@pytest.mark.parametrize("how", ["stay", "leave"])
def test_an_extent_waits_for_the_process_that_maps_it(
    served: farpool.Pool, start: Callable[[str], subprocess.Popen[str]], how: str
) -> None:
    shared = served.allocate("4MiB", name="shared", lease="persistent")
    child = start(how)
    assert line_of(child) == "held"
    if how == "leave":  # its pool is closed, and its view lives on
        assert line_of(child) == "closed"
    shared.free()
    assert served.stat().reclaiming == 4 << 20
    with pytest.raises(PoolFull):
        served.allocate("12MiB")
    child.kill()
    child.wait()
    wait_until(lambda: served.stat().reclaiming == 0)
    served.allocate("14MiB").free()


def test_a_closed_pool_leaves_nothing_behind(served: farpool.Pool) -> None:
    with farpool.connect(served.url, transport="cxl") as other:
        slab = other.allocate("4MiB", lease="persistent", name="kept")
        kept = other.open("kept")
        del kept
        slab.write(b"x")
    served.open("kept").free()
    assert served.stat().reclaiming == 0
