"""``farpool format``: give a memory device up to the next server that serves it."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from farpool.protocol.errors import InvalidArgument, PermissionDenied, ProtocolError
from farpool.protocol.units import format_bytes
from farpool.transports.cxl.devices import open_device
from farpool.transports.cxl.superblock import PAGE_BYTES, Superblock, read_superblock, write_superblock

__all__ = ["format"]


def format(  # noqa: A001  the command's name
    path: Annotated[str, typer.Argument(metavar="DEVICE", help="Such as /dev/dax0.0.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", help="Do it: what the device holds is lost.")] = False,
) -> None:
    """Say what a device holds, and with --yes make it a blank one that any server may take."""
    device = open_device(path, writable=True)
    try:
        device.lock()
        if device.nbytes < device.align:
            raise InvalidArgument(f"{path} is too small: {format_bytes(device.nbytes)}; name a larger device")
        with device.map(0, PAGE_BYTES, writable=True) as header:
            try:
                found = read_superblock(header, incoherent=True)
            except ProtocolError as error:
                holds = error.message
            else:
                holds = "it is blank" if found is None else f"it carries the arena {found.arena.hex()}"
                holds += "" if found is None or found.claimed else ", which no server has taken yet"
            if not yes:
                raise PermissionDenied(f"{path}: {holds}; to lose that, run: farpool format --yes {path}")
            fresh = Superblock(
                os.urandom(16), device.nbytes, device.align, device.nbytes // device.align, claimed=False
            )
            write_superblock(header, fresh, incoherent=True)
    finally:
        device.close()
    print(f"formatted {path}, {format_bytes(device.nbytes)}; it was: {holds}")
