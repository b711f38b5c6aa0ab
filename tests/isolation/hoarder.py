"""A client that says to have let go, and does not: ``python hoarder.py URL NBYTES WHAT``.

It allocates and frees slabs of that size over cxl until it is refused, and keeps of each what WHAT says. What it prints
is JSON: how many it got, the error that ended it, and who holds what. Then it waits to be killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from tests.descriptors import fetch_descriptor

import farpool
from farpool.native.mapping import Mapping
from farpool.protocol.messages import Done, Free, Goodbye

MOST = 20
KEPT: list[object] = []


def descriptor_of(slab: farpool.Slab, *, writable: bool) -> int:
    """Return a descriptor of one's own of a slab's file."""
    return fetch_descriptor(slab.attachment.ticket.params, slab.id, slab.generation, writable=writable)


def keep_descriptor(slab: farpool.Slab) -> None:
    """Keep the file open, and nothing mapped."""
    KEPT.append(descriptor_of(slab, writable=True))
    slab.attachment.region.close()


def keep_descriptor_for_reading(slab: farpool.Slab) -> None:
    """Keep the file open for reading."""
    KEPT.append(descriptor_of(slab, writable=False))
    slab.attachment.region.close()


def keep_mapping(slab: farpool.Slab) -> None:
    """Keep the memory mapped, without a descriptor."""
    KEPT.append((slab, slab.view()))


def keep_mapping_for_reading(slab: farpool.Slab) -> None:
    """Keep a page of it mapped for reading."""
    descriptor = descriptor_of(slab, writable=False)
    KEPT.append(Mapping(descriptor, 4096, writable=False))
    os.close(descriptor)
    slab.attachment.region.close()


def keep_without_rights(slab: farpool.Slab) -> None:
    """Keep a descriptor that neither reads nor writes."""
    descriptor = descriptor_of(slab, writable=False)
    KEPT.append(os.open(f"/proc/self/fd/{descriptor}", os.O_PATH))
    os.close(descriptor)
    slab.attachment.region.close()


WAYS: dict[str, Callable[[farpool.Slab], None]] = {
    function.__name__: function
    for function in (
        keep_descriptor,
        keep_descriptor_for_reading,
        keep_mapping,
        keep_mapping_for_reading,
        keep_without_rights,
    )
}


def free(pool: farpool.Pool, slab: farpool.Slab) -> None:
    """End a slab, and say to have let go of it."""
    request = Free(id=slab.id, generation=slab.generation, detached="cxl", memory=slab.generation)
    slab.attachment.session.call(request, Done, time.monotonic() + 20)


def part_with(pool: farpool.Pool, slab: farpool.Slab) -> None:
    """End the session instead, and say that nothing of it stays mapped."""
    slab.attachment.session.call(Goodbye(), Done, time.monotonic() + 20)


def hoard(pool: farpool.Pool, nbytes: int, keep: Callable[[farpool.Slab], None]) -> tuple[int, str]:
    """Get as much as there is to get; return how many slabs that were, and what ended it."""
    for got in range(MOST):
        try:
            slab = pool.allocate(nbytes)
        except farpool.FarpoolError as error:
            return got, type(error).__name__
        keep(slab)
        free(pool, slab)
    return MOST, ""


def main(url: str, nbytes: int, what: str) -> None:
    """Hoard, and say how it went."""
    child = 0
    with farpool.connect(url, transport="cxl", tenant="hoarder", timeout=20) as pool:
        if what == "keep_draft":
            got, error = hoard_drafts(pool, nbytes)
        elif what == "part_with":
            slab = pool.allocate(nbytes)
            keep_mapping(slab)
            got, error = 1, ""
            part_with(pool, slab)
        elif what == "leave_to_a_child":
            got, error = hoard(pool, nbytes, keep_mapping)
            child = os.fork()
        else:
            got, error = hoard(pool, nbytes, WAYS[what])
        if child or what != "leave_to_a_child":
            print(json.dumps({"got": got, "error": error, "child": child}), flush=True)
        sys.stdin.read()
        os._exit(0)


def hoard_drafts(pool: farpool.Pool, nbytes: int) -> tuple[int, str]:
    """Commit drafts of one slab, and keep what each has replaced."""
    slab = pool.allocate(nbytes, name="drafted")
    for got in range(MOST):
        KEPT.append(fetch_descriptor(slab.attachment.ticket.params, slab.id, slab.attachment.key[1], writable=False))
        try:
            draft = slab.reserve()
        except farpool.FarpoolError as error:
            return got, type(error).__name__
        draft.commit()
        slab.read(1)
    return MOST, ""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
