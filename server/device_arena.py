"""An arena on a memory device, ``/dev/daxX.Y`` or a file that stands for one, cut into extents.

The device begins with a superblock and the generation words; every slab has one extent after them. Which one is in
the catalog, in a folder of the server's state directory. An extent's bytes are zeroed before a slab gets them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from pathlib import Path
from typing import Final

from farpool.native import cache_lines
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import FarpoolError, InvalidArgument, PoolFull, SlabNotFound, TransportUnavailable
from farpool.protocol.units import format_bytes
from farpool.server.catalog import SlabRow
from farpool.server.device_generations import DeviceGenerations
from farpool.server.device_state import claim, words_of, write_note
from farpool.server.extents import Extent, ExtentAllocator
from farpool.server.generations import Generations
from farpool.server.private_folders import lock_folder, open_private_folder
from farpool.server.settings import ConfigurationError
from farpool.transports.contract import Mode, ServedDevice
from farpool.transports.cxl.devices import Device, open_device
from farpool.transports.cxl.superblock import PAGE_BYTES, header_bytes, write_superblock

__all__ = ["DeviceArena"]

LEAST_EXTENTS: Final = 1
"""A device holds its header and at least so many extents."""


class DeviceArena:
    """A device, held with a lock for this server alone. Thread-safe where the protocol asks for it.

    Raises:
        ConfigurationError: no device of ours, too small, or busy; one line with the command that mends it.
    """

    file_system = "devdax"
    volatile = False
    """The catalog is on a disk; whether the device's bytes outlive the machine is seen at the next start."""
    reuses_memory = True
    sees_holders = False
    """The kernel does not tell who maps which part of it, least of all on other hosts."""

    def __init__(self, path: str, state_dir: str, *, incoherent: bool, lock_fd: int | None = None) -> None:
        self.path = path
        self._incoherent = incoherent
        self._lock = threading.Lock()
        self._extents: dict[int, Extent] = {}
        self._lost: set[int] = set()
        with contextlib.ExitStack() as undo:
            self._device = _open(path, incoherent=incoherent)
            undo.callback(self._device.close)
            self._words = words_of(self._device)
            start = header_bytes(self._words, self._device.align)
            self._allocator = ExtentAllocator(start, self._device.nbytes, self._device.align)
            if self._allocator.total < LEAST_EXTENTS * self._device.align:
                least = start + LEAST_EXTENTS * self._device.align
                raise ConfigurationError(
                    f"{path} is too small: {format_bytes(self._device.nbytes)}, an arena there needs "
                    f"{format_bytes(max(least, 2 * self._device.align))} at least; name a larger device, or run: "
                    f"daxctl reconfigure-device --size={max(least, 2 * self._device.align)} {Path(path).name}"
                )
            self._header = self._map(0, start)
            undo.callback(self._header.close)
            self._open_state(Path(state_dir), undo, lock_fd)
            undo.pop_all()

    def _open_state(self, state_dir: Path, undo: contextlib.ExitStack, lock_fd: int | None) -> None:
        if self._incoherent:
            cache_lines.drop_memory(self._header, 0, self._header.nbytes)
        with memoryview(self._header) as view:
            page = bytes(view[:PAGE_BYTES])
        superblock = claim(self._device, page, state_dir)
        self.control_path = str(state_dir / superblock.arena.hex())
        with contextlib.suppress(OSError):  # what it was is said by the next call
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.control_fd = open_private_folder(self.control_path, "state directory")
        undo.callback(os.close, self.control_fd)
        self.lock_fd = lock_folder(self.path, self.control_fd, lock_fd)
        undo.callback(os.close, self.lock_fd)
        write_superblock(self._header, superblock, incoherent=self._incoherent)
        write_note(Path(self.control_path), self._device)
        self.device = ServedDevice(self.path, superblock.arena, superblock.incarnation)

    @property
    def incoherent(self) -> bool:
        """Tell whether hosts with caches of their own share the device."""
        return self._incoherent

    @property
    def room(self) -> int:
        """Bytes of all extents together."""
        return self._allocator.total

    def open_generations(self) -> DeviceGenerations:
        """Return the words on the device."""
        return DeviceGenerations(self._header, self._words, self.path, incoherent=self._incoherent)

    def recover(self, rows: list[SlabRow], generations: Generations) -> None:
        """Take the extents of the catalog's rows; a slab whose word is another's has ended, whatever its row says."""
        for row in rows:
            extent = Extent(row.extent or 0, self.charge(row.nbytes))
            try:
                self._allocator.claim(extent)
            except InvalidArgument as error:
                raise ConfigurationError(
                    f"the catalog of {self.path} contradicts itself ({error.message}, slab {row.id}); restore a copy "
                    f"of {self.control_path}, or begin anew: farpool format --yes {self.path}"
                ) from None
            self._extents[row.memory_id] = extent
            if row.reclaiming or generations.load(row.slot) != row.generation:
                self._lost.add(row.memory_id)

    def charge(self, nbytes: int) -> int:
        """Return *nbytes* in whole units of the device's alignment."""
        return self._allocator.round_up(nbytes)

    def create(self, slab_id: int, nbytes: int) -> None:
        """Take an extent for the slab, and zero it for every host."""
        with self._lock:
            extent = self._allocator.take(nbytes)
            free, longest = self._allocator.free, self._allocator.longest
            if extent is not None:
                self._extents[slab_id] = extent
        if extent is None:
            pieces = f" in pieces of at most {format_bytes(longest)}" if longest < free else ""
            raise PoolFull(
                f"the device {self.path} has {format_bytes(free)} free{pieces} of {format_bytes(self.room)}; free "
                "slabs, or serve a larger device",
                asked=self.charge(nbytes),
                file_system_free=longest,
            )
        try:
            with self._map(extent.offset, extent.nbytes) as mapping:
                ctypes.memset(mapping.address, 0, extent.nbytes)  # lets go of the GIL
                if self._incoherent:
                    cache_lines.flush_memory(mapping, 0, extent.nbytes)
        except BaseException:
            self.reclaim(slab_id)
            raise

    def offset(self, slab_id: int) -> int:
        """Return where the slab's extent begins."""
        return self._extent(slab_id).offset

    def open_descriptor(self, slab_id: int, mode: Mode) -> int:
        """Return a new descriptor of the whole device."""
        self._extent(slab_id)
        flags = (os.O_RDONLY if mode == "r" else os.O_RDWR) | os.O_CLOEXEC
        return os.open(self.path, flags)

    def map(self, slab_id: int, nbytes: int) -> MemoryMapping:
        """Return a new read-write mapping of the slab's extent."""
        extent = self._extent(slab_id)
        return self._map(extent.offset, extent.nbytes)

    def remove(self, slab_id: int) -> None:
        """Do nothing yet: the extent waits for :meth:`reclaim`."""

    def reclaim(self, slab_id: int) -> bool:
        """Give the extent to whoever comes next; nothing happens if there is none."""
        with self._lock:
            extent = self._extents.pop(slab_id, None)
            self._lost.discard(slab_id)
            if extent is not None:
                self._allocator.give_back(extent)
        return True

    def slabs(self) -> dict[int, int]:
        """Return the slabs that have not ended, with the length of their extent."""
        return {slab_id: extent.nbytes for slab_id, extent in self._extents.items() if slab_id not in self._lost}

    def keep_reserve(self) -> bool:
        """Return True: the catalog takes no room from slabs."""
        return True

    def use_reserve(self) -> None:
        """Do nothing: there is no reserve."""

    def discard(self) -> None:
        """Do nothing: the device was there before, and its superblock claims it for the next start too."""

    def close(self) -> None:
        """Unlock and close the device. May be called twice."""
        if self._device.fd >= 0:
            self._header.close()
            for fd in (self.lock_fd, self.control_fd):
                os.close(fd)
            self._device.close()

    def _extent(self, slab_id: int) -> Extent:
        extent = self._extents.get(slab_id)
        if extent is None:
            raise SlabNotFound(f"slab {slab_id} has no extent on {self.path}", id=slab_id)
        return extent

    def _map(self, offset: int, nbytes: int) -> MemoryMapping:
        try:
            return self._device.map(offset, nbytes, writable=True)
        except TransportUnavailable as error:
            raise FarpoolError(error.message) from error


def _open(path: str, *, incoherent: bool) -> Device:
    try:
        if incoherent:
            cache_lines.instructions()
        device = open_device(path, writable=True)
        try:
            device.lock()
        except BaseException:
            device.close()
            raise
    except TransportUnavailable as error:
        raise ConfigurationError(f"arena {error.message}") from None
    return device
