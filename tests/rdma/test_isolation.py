"""A key opens one slab to one tenant: on the queue pairs of another the device refuses it, whoever has guessed it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

import farpool
from farpool.client.transports import Selection
from farpool.server.embedded import EmbeddedServer
from farpool.transports.contract import ClientTransport, Region

NBYTES = 1 << 16
SECRET = b"victim's"
TIMEOUT = 20.0
GUESSES = 4

ATTEMPTS: dict[str, Callable[[Region], object]] = {
    "read": lambda region: region.read(8),
    "read of more than staging takes": lambda region: region.read(NBYTES),
    "write": lambda region: region.write(b"intruder"),
    "fetch_add": lambda region: region.fetch_add(0, 1),
    "compare_swap": lambda region: region.compare_swap(0, int.from_bytes(SECRET, "little"), 1),
}


@pytest.fixture
def server(rdma_device: str) -> Iterator[EmbeddedServer]:
    tenants = {name: {"uids": [os.geteuid()]} for name in ("victim", "intruder")}
    with farpool.serve_embedded(capacity="16MiB", transports=["tcp", "rdma"], tenants=tenants) as running:
        yield running


@pytest.fixture
def victim(server: EmbeddedServer) -> Iterator[farpool.Pool]:
    with farpool.connect(server.url, transport="rdma", tenant="victim", timeout=TIMEOUT) as pool:
        yield pool


@pytest.fixture
def intruder(server: EmbeddedServer) -> Iterator[farpool.Pool]:
    with farpool.connect(server.url, transport="rdma", tenant="intruder", timeout=TIMEOUT) as pool:
        yield pool


def client_of(pool: farpool.Pool) -> ClientTransport:
    """Return the client half over which a pool's slabs are reached: an intruder has one as well."""
    selection = vars(pool)["_selection"]
    assert isinstance(selection, Selection)
    return selection.client


def forged(pool: farpool.Pool, address: int, rkey: int) -> Region:
    """Return a region over the pool's own queue pairs that names another's memory, and never learns better."""
    mine = pool.allocate(NBYTES, atomics="rdma").attachment
    params = {**mine.ticket.params, "address": address, "rkey": rkey}

    def renew(seconds: float) -> Mapping[str, Any]:
        return params

    return client_of(pool).attach(replace(mine.ticket, params=params, renew=renew), TIMEOUT)


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_a_key_that_was_guessed_opens_nothing(
    victim: farpool.Pool, intruder: farpool.Pool, attempt: Callable[[Region], object]
) -> None:
    slab = victim.allocate(NBYTES, atomics="rdma")
    slab.write(SECRET)
    keys = slab.attachment.ticket.params
    for guess in range(GUESSES):
        region = forged(intruder, keys["address"], (keys["rkey"] + guess) & 0xFFFFFFFF)
        with pytest.raises(farpool.FarpoolError):
            attempt(region)
        region.close()
    assert slab.read(NBYTES) == SECRET + bytes(NBYTES - len(SECRET))


def test_what_was_granted_for_reading_cannot_be_written(victim: farpool.Pool, intruder: farpool.Pool) -> None:
    slab = victim.allocate(NBYTES, name="shown", atomics="rdma")
    slab.write(SECRET)
    slab.grant("intruder", mode="r")
    with intruder.open("shown", tenant="victim", mode="r") as seen:
        assert seen.read(len(SECRET)) == SECRET
        keys = seen.attachment.ticket.params
        for name in ("write", "fetch_add", "compare_swap"):
            region = forged(intruder, keys["address"], keys["rkey"])
            with pytest.raises(farpool.FarpoolError):
                ATTEMPTS[name](region)
            region.close()
        assert seen.read(len(SECRET)) == SECRET
        slab.revoke("intruder")
        region = forged(intruder, keys["address"], keys["rkey"])
        with pytest.raises(farpool.FarpoolError):
            region.read(8)
        region.close()
    assert slab.read(NBYTES) == SECRET + bytes(NBYTES - len(SECRET))
