"""Programs run as another user, without capabilities: ``python lowered.py UID serve|attach ARGUMENT...``, for root.

The other user may be unable to read this installation, so that all that a program needs is imported before it becomes
that user.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest import mock

import farpool
from farpool.cli.main import main as run_command
from farpool.native.mapping import Mapping
from farpool.transports.cxl import client
from farpool.transports.registry import find_transport, transport_names

LATER = ("farpool.cli.serve", "farpool.server.app", "farpool.transports.cxl.awaitable")
"""Modules that are imported when they are needed, which would be too late."""


def become(uid: int) -> None:
    """Give up root for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    capabilities = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")]
    assert int(capabilities[0].split()[1], 16) == 0


def serve(*options: str) -> int:
    """Run ``farpool serve``."""
    return run_command(["serve", *options])


def attach(url: str, name: str) -> int:
    """Attach a slab for reading, and try every way to write that the kernel or farpool could have left open."""
    kept: list[int] = []

    def map_and_keep(fd: int, nbytes: int, *, writable: bool) -> Mapping:
        kept.append(os.dup(fd))
        return Mapping(fd, nbytes, writable=writable)

    with (
        mock.patch.object(client, "MemoryMapping", map_and_keep),
        farpool.connect(url, transport="cxl") as pool,
        pool.open(name, mode="r") as slab,
    ):
        descriptors = [fd for fd in kept if os.fstat(fd).st_size >= slab.nbytes]
        tries: dict[str, Callable[[], object]] = {
            "slab.write": lambda: slab.write(b"x"),
            "slab.store": lambda: slab.store(0, 1),
            "slab.view": lambda: slab.view().__setitem__(0, 1),
        }
        for number, fd in enumerate(descriptors):
            tries |= {
                f"write {number}": partial(os.write, fd, b"x"),
                f"ftruncate {number}": partial(os.ftruncate, fd, 0),
                f"fallocate {number}": partial(os.posix_fallocate, fd, 0, 4096),
                f"mmap {number}": partial(mmap.mmap, fd, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE),
                f"open {number}": partial(os.open, f"/proc/self/fd/{fd}", os.O_RDWR),
                f"chmod {number}": partial(os.fchmod, fd, 0o666),
            }
        print(json.dumps({"bytes": slab.read(8).decode(), **{what: error_of(do) for what, do in tries.items()}}))
    return 0


def error_of(do: Callable[[], object]) -> str:
    """Return the name of the error that *do* raises; "" if it succeeds."""
    try:
        do()
    except (OSError, TypeError, farpool.FarpoolError) as error:
        return type(error).__name__
    return ""


if __name__ == "__main__":
    for transport in transport_names():
        find_transport(transport)
    for module in LATER:
        import_module(module)
    become(int(sys.argv[1]))
    sys.exit(serve(*sys.argv[3:]) if sys.argv[2] == "serve" else attach(*sys.argv[3:]))
