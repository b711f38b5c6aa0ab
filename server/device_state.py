"""What a server keeps beside a device: one folder an arena, with the catalog and a note of whose it is.

The superblock and this folder know each other by the arena's number. A device that carries a number without a folder
here is another server's; one that is blank although a folder names it has lost its memory, or was wiped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec
import structlog

from farpool.protocol.errors import ProtocolError
from farpool.protocol.units import format_bytes
from farpool.server.deadlines import boot_id
from farpool.server.settings import ConfigurationError
from farpool.transports.cxl.devices import Device
from farpool.transports.cxl.superblock import Superblock

__all__ = ["DeviceNote", "claim", "words_of", "write_note"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.arena")

NOTE: Final = "device.json"


class DeviceNote(msgspec.Struct, frozen=True, kw_only=True):
    """Which device an arena is on."""

    path: str
    identity: str
    nbytes: int
    align: int
    boot_id: str
    """Boot of the machine in which a server had it last."""


def words_of(device: Device) -> int:
    """Return how many generation words a device has: one for each unit of its alignment."""
    return device.nbytes // device.align


def claim(device: Device, page: bytes, state_dir: Path) -> Superblock:
    """Return the superblock that a server shall write now, whose state is in ``state_dir/NUMBER``.

    Raises:
        ConfigurationError: the device is another server's, holds something else or has changed.
    """
    mend = f"if what it holds may go, run: farpool format --yes {device.path}"
    try:
        found = Superblock.decode(page)
    except ProtocolError as error:
        raise ConfigurationError(f"{device.path} is not ours to write to: {error.message}; {mend}") from None
    if found is None or not found.claimed:
        _forget_former(device, state_dir, blank=found is None, mend=mend)
        fresh = Superblock(os.urandom(16), device.nbytes, device.align, words_of(device))
        return fresh.begun()
    if not (state_dir / found.arena.hex()).is_dir():
        raise ConfigurationError(
            f"{device.path} carries the foreign arena {found.arena.hex()}, of which {state_dir} knows nothing: another "
            f"server has it, or another --state-dir; {mend}"
        )
    if (found.nbytes, found.align) != (device.nbytes, device.align):
        raise ConfigurationError(
            f"{device.path} has {format_bytes(device.nbytes)} aligned to {format_bytes(device.align)} now, its arena "
            f"was made for {format_bytes(found.nbytes)} aligned to {format_bytes(found.align)}; set that again with "
            f"daxctl reconfigure-device, or, {mend}"
        )
    return found.begun()


def write_note(folder: Path, device: Device) -> None:
    """Note in the arena's folder which device it is on."""
    note = DeviceNote(
        path=device.path,
        identity=device.identity,
        nbytes=device.nbytes,
        align=device.align,
        boot_id=boot_id(),
    )
    fresh = folder / f"{NOTE}.new"
    fresh.write_bytes(msgspec.json.encode(note))
    fresh.rename(folder / NOTE)


def _forget_former(device: Device, state_dir: Path, *, blank: bool, mend: str) -> None:
    """Remove the state of arenas that were on the device; refuse if it is blank and nothing explains that."""
    for folder in state_dir.iterdir() if state_dir.is_dir() else ():
        note = _read_note(folder)
        if note is None or note.identity != device.identity:
            continue
        if blank and note.boot_id == boot_id():
            raise ConfigurationError(
                f"{device.path} is blank, but was the arena {folder.name} since this machine's start: it was wiped, "
                f"or is another device; {mend}"
            )
        log.warning(
            "the device's memory was formatted" if not blank else "the device lost its memory; the pool begins empty",
            device=device.path,
            arena=folder.name,
        )
        shutil.rmtree(folder)


def _read_note(folder: Path) -> DeviceNote | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / NOTE).read_bytes(), type=DeviceNote)
    return None
