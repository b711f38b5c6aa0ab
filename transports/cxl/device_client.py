"""The client half of cxl on a device: this process opens the device by itself, wherever the server runs.

The superblock tells that it is the server's: the arena's number, and the incarnation that the server drew when it
started, which no copy of the memory and no look-alike can hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farpool.native.cxl_region import CxlRegion
from farpool.native.mapping import Mapping as MemoryMapping
from farpool.protocol.errors import ProtocolError, TransportUnavailable
from farpool.transports.contract import Ticket
from farpool.transports.cxl.coherence import make_region
from farpool.transports.cxl.devices import Device, candidates, open_device
from farpool.transports.cxl.superblock import PAGE_BYTES, header_bytes, read_superblock, words_end
from farpool.transports.ending import Ending

__all__ = ["DeviceClient"]


@dataclass(slots=True)
class _Found:
    """The device that carries one incarnation of an arena; its first extent is mapped read-only, with the words."""

    device: Device
    incarnation: bytes
    header: MemoryMapping


class DeviceClient(Ending):
    """Finds the pool's device, and maps extents of it, until its end. Thread-safe.

    At the end the device is closed; regions close themselves, and keep the words mapped until then.
    """

    BUSY = "another thread looked for the pool's device until the deadline; raise timeout="

    def __init__(self) -> None:
        super().__init__()
        self._found: _Found | None = None

    def find(self, params: Mapping[str, Any], deadline: float) -> None:
        """Open the device that an offer or a grant names; raise ``TransportUnavailable`` with what each lacked."""
        with self.held(deadline):
            self._find(params)

    def attach(self, ticket: Ticket, deadline: float) -> CxlRegion:
        """Map the grant's extent: (device, offset, length)."""
        with self.held(deadline):
            found = self._find(ticket.params)
            device = found.device
            if ticket.writable:
                device = open_device(device.path, writable=True)
            try:
                mapping = device.map(int(ticket.params["offset"]), ticket.nbytes, writable=ticket.writable)
            finally:
                if device is not found.device:
                    device.close()
        return make_region(ticket, mapping, found.header)

    def _let_go(self) -> None:
        self._forget()

    def _find(self, params: Mapping[str, Any]) -> _Found:
        wanted = params["device"]
        if self._found is not None and self._found.incarnation == wanted["incarnation"]:
            return self._found
        self._forget()
        incoherent = params.get("coherence") == "software"
        reasons: list[str] = []
        for path in candidates(str(wanted["path"])):
            try:
                self._found = _open_if_it_is(path, wanted, incoherent=incoherent)
            except (TransportUnavailable, ProtocolError) as error:
                reasons.append(f"{path}: {error.message}" if isinstance(error, ProtocolError) else error.message)
            else:
                return self._found
        if not any("; run" in reason for reason in reasons):
            reasons.append("to see what each device here holds, run: farpool doctor")
        raise TransportUnavailable("this host does not reach the pool's memory device; " + "; ".join(reasons))

    def _forget(self) -> None:
        if self._found is not None:
            self._found.device.close()
            self._found = None


def _open_if_it_is(path: str, wanted: Mapping[str, Any], *, incoherent: bool) -> _Found:
    device = open_device(path, writable=False)
    try:
        with device.map(0, PAGE_BYTES, writable=False) as page:
            superblock = read_superblock(page, incoherent=incoherent)
        if superblock is None or superblock.arena != wanted["arena"]:
            raise TransportUnavailable(f"{path} is not the device of this pool")
        if superblock.incarnation != wanted["incarnation"]:
            raise TransportUnavailable(f"{path} is a copy of the pool's device, not the memory that the server uses")
        length = header_bytes(superblock.words, superblock.align)
        if superblock.align != device.align or length > device.nbytes:
            raise TransportUnavailable(f"{path} has another alignment or size here than on the server's host")
        header = device.map(0, words_end(superblock.words), writable=False)
    except BaseException:
        device.close()
        raise
    return _Found(device, bytes(wanted["incarnation"]), header)
