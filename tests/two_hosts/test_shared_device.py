"""Clients of host B on the device that host A serves: they open it by themselves, and only the right one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from tests.two_hosts.conftest import Connect

import farpool
from farpool.transports.cxl.device_client import DeviceClient


def test_host_b_maps_the_device_itself_and_the_words_with_it(url: str, connect: Connect) -> None:
    slab = connect(url, "cxl").allocate(4096)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if os.environ["LAB_DAX"] in line]
    assert {fields[1] for fields in maps} == {"r--s", "rw-s"}, "the generation words, and the slab"
    slab.free()


@pytest.mark.parametrize(
    ("field", "reason"),
    [("arena", "is not the device of this pool"), ("incarnation", "is a copy of the pool's device")],
)
def test_a_device_of_another_pool_or_a_copy_is_refused(url: str, connect: Connect, field: str, reason: str) -> None:
    pool = connect(url, "cxl")
    offers = pool._session.welcome.offers  # pyright: ignore[reportPrivateUsage]
    (offer,) = [offer for offer in offers if offer.transport == "cxl"]
    params: dict[str, Any] = {**offer.params, "device": {**offer.params["device"], field: bytes(16)}}
    client = DeviceClient()
    with pytest.raises(farpool.TransportUnavailable, match=f"{os.environ['LAB_DAX']} {reason}"):
        client.find(params, time.monotonic() + 10.0)
    client.find(offer.params, time.monotonic() + 10.0)
    client.end()
