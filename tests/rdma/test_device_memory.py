"""Memory of a DAX device as an RDMA device sees it: it can be registered in any part, whatever is mapped beside it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from farpool.protocol.errors import FarpoolError
from farpool.transports.cxl.devices import open_device
from farpool.transports.rdma import binding as bindings

BINDINGS = ("native", "pyverbs")


@pytest.mark.lab
@pytest.mark.parametrize("name", BINDINGS)
def test_any_part_of_a_dax_device_is_registered(rdma_device: str, name: str) -> None:
    path = os.environ.get("FARPOOL_TEST_DAX", "")
    if not path:
        pytest.skip("no DAX device is named; the lab has one: FARPOOL_TEST_DAX=/dev/dax0.0")
    try:
        binding: Any = bindings.load(name)
    except FarpoolError as error:
        pytest.skip(error.message)
    memory = open_device(path, writable=True)
    device = binding.open_device(rdma_device, 1)
    domain = binding.domain(device)
    units = [memory.map(number * memory.align, memory.align, writable=True) for number in range(3)]
    for unit in units:
        for nbytes in (4096, 8, memory.align // 2, memory.align):
            region = domain.register(unit, unit.address, nbytes, binding.LOCAL | binding.READ | binding.WRITE)
            assert region.rkey
            region.close()
    domain.close()
    device.close()
    for unit in units:
        unit.close()
    memory.close()
