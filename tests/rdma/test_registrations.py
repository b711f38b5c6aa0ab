"""The cache of registered buffers: what it keeps, for how long, and that memory which moved is never taken for old."""

from __future__ import annotations

import array
import gc
import mmap
import threading
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from farpool.native.checks import buffer_extent
from farpool.transports.rdma import registrations as module
from farpool.transports.rdma.registrations import Registrations

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from farpool.transports.rdma.binding import VerbsDomain, VerbsMemory


class Counted:
    """What a device would give for a range."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.range = (address, nbytes)


class CountingDomain:
    """Registers nothing, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def register(self, owner: object, address: int, nbytes: int, access: int) -> VerbsMemory:
        self.count += 1
        return cast("VerbsMemory", Counted(address, nbytes))


@pytest.fixture
def domain() -> CountingDomain:
    return CountingDomain()


@pytest.fixture
def cache(domain: CountingDomain) -> Registrations:
    return Registrations(cast("VerbsDomain", domain), 1)


def ask(cache: Registrations, buffer: Any) -> VerbsMemory:
    return cache(buffer, *buffer_extent(buffer))


def test_slices_of_an_array_share_a_registration(cache: Registrations, domain: CountingDomain) -> None:
    whole = np.zeros(1 << 20, np.uint8)
    first = ask(cache, whole[:1000])
    assert all(ask(cache, part) is first for part in (whole, whole[5000:], memoryview(whole)[3:9]))
    assert domain.count == 1


def test_it_ends_with_the_array(cache: Registrations, domain: CountingDomain) -> None:
    """Freed and allocated anew, perhaps at the same address: another registration."""
    for number in range(1, 6):
        ask(cache, np.zeros(1 << 20, np.uint8))
        gc.collect()
        assert (len(cache), domain.count) == (0, number)


def mapped(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, nbytes)


def numbers(nbytes: int) -> array.array[int]:
    return array.array("B", bytes(nbytes))


@pytest.mark.parametrize("make", [bytearray, mapped, numbers])
def test_memory_that_may_move_is_registered_each_time(
    cache: Registrations, domain: CountingDomain, make: Callable[[int], Buffer]
) -> None:
    buffer = make(1 << 20)
    for number in range(1, 4):
        ask(cache, buffer)
        assert (len(cache), domain.count) == (0, number)


def test_slices_of_a_long_array_are_kept_apart(
    cache: Registrations, domain: CountingDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 1 << 16)
    whole = np.zeros(1 << 20, np.uint8)
    for _ in range(3):
        for start in range(0, 1 << 20, 1 << 18):
            ask(cache, whole[start : start + (1 << 18)])
    assert (len(cache), domain.count) == (4, 4)


def test_it_is_bounded(cache: Registrations, domain: CountingDomain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1 << 20)
    arrays = [np.zeros(1 << 19, np.uint8) for _ in range(5)]
    for each in arrays:
        ask(cache, each)
    assert len(cache) == 2
    ask(cache, arrays[-1])
    assert domain.count == 5
    ask(cache, arrays[0])
    assert domain.count == 6


def test_threads_that_ask_at_once_are_counted_once(cache: Registrations) -> None:
    shared = {"whole": np.zeros(1 << 20, np.uint8)}
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait()
        for start in range(200):
            ask(cache, shared["whole"][start:])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 1
    shared.clear()
    gc.collect()
    assert (len(cache), cache.pinned) == (0, 0)
