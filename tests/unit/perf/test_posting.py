"""Posting without a device: what reaches the doorbell, and the rows of the benchmark."""

from __future__ import annotations

import json
from array import array
from typing import Self

import pytest

import farpool
from farpool.cli.main import main
from farpool.perf import posting

verbs_stub = pytest.importorskip(
    "farpool.native.verbs_stub",
    reason="this build has no rdma: apt-get install libibverbs-dev, then make build",
    exc_type=ImportError,
)

SECONDS = 0.005


class Posted:
    """Counts what is posted while the block lasts."""

    counts: tuple[int, ...] = ()
    """Doorbells, work requests, signalled ones, bytes."""

    def __enter__(self) -> Self:
        self._before = verbs_stub.posted()
        return self

    def __exit__(self, *_: object) -> None:
        self.counts = tuple(now - before for now, before in zip(verbs_stub.posted(), self._before, strict=True))


def test_a_small_operation_is_one_request() -> None:
    region = verbs_stub.instant_region(4096)
    with Posted() as posted:
        assert region.read_into(bytearray(64), 128) == 64
    assert posted.counts == (1, 1, 1, 64)
    with Posted() as posted:
        region.write(b"12345", 0)
    assert posted.counts == (1, 1, 1, 5)
    with Posted() as posted:
        region.fetch_add(8, 1)
    assert posted.counts == (1, 1, 1, 8)


@pytest.mark.parametrize(("parts", "doorbells"), [(1, 1), (32, 1), (128, 1), (129, 2), (300, 3)])
def test_a_batch_has_one_doorbell_and_one_completion_for_each_filling_of_the_queue(parts: int, doorbells: int) -> None:
    region = verbs_stub.instant_region(300 * 64)
    with Posted() as posted:
        assert region.readv([(64 * part, bytearray(64)) for part in range(parts)]) == 64 * parts
    assert posted.counts == (doorbells, parts, doorbells, 64 * parts)
    with Posted() as posted:
        assert region.writev([(64 * part, b"x" * 64) for part in range(parts)]) == 64 * parts
    assert posted.counts == (doorbells, parts, doorbells, 64 * parts)
    with Posted() as posted:
        region.read_into(bytearray(64), 0)
    assert posted.counts == (1, 1, 1, 64), "a shorter chain after a longer one"


@pytest.mark.parametrize(("parts", "doorbells"), [(1, 1), (128, 1), (129, 2), (15_000, 118)])
def test_parts_of_one_size_are_posted_like_a_batch(parts: int, doorbells: int) -> None:
    region = verbs_stub.instant_region(4096 * parts)
    offsets, buffer = array("q", range(0, 4096 * parts, 4096)), bytearray(4096 * parts)
    for move in (region.gather, region.scatter):
        with Posted() as posted:
            assert move(offsets, 4096, buffer) == 4096 * parts
        assert posted.counts == (doorbells, parts, doorbells, 4096 * parts)


def test_large_parts_go_without_a_copy() -> None:
    region = verbs_stub.instant_region(64 << 20)
    whole = memoryview(bytearray(16 << 16))
    with Posted() as posted:
        region.readv([(part << 16, whole[part << 16 : (part + 1) << 16]) for part in range(16)])
    assert posted.counts == (1, 16, 1, 16 << 16)


def test_what_is_refused_is_not_posted() -> None:
    region = verbs_stub.instant_region(4096)
    with Posted() as posted:
        with pytest.raises(farpool.OutOfBounds):
            region.read_into(bytearray(64), 4090)
        with pytest.raises(farpool.OutOfBounds):
            region.readv([(0, bytearray(64)), (4096, bytearray(1))])
    assert posted.counts == (0, 0, 0, 0)


def test_the_limit_posts_the_same() -> None:
    bare = verbs_stub.instant_verbs(4096)
    samples = array("q", [0])
    with Posted() as posted:
        assert bare.move(True, array("q", [0, 64]), 64, 32, 10, samples, 0.1) == 1
    assert posted.counts == (10, 320, 10, 320 * 64)
    bare.close()


def test_each_operation_is_a_row() -> None:
    rows = list(posting.run(SECONDS))
    assert [(row.op, row.nbytes, row.batch) for row in rows] == [
        ("read_into", 64, 1),
        ("write", 64, 1),
        ("load", 8, 1),
        ("readv", 64, 32),
    ]
    for row in rows:
        assert (row.transport, row.emulated, row.reason, row.limit_name) == (posting.NAME, True, "", "bare verbs")
        assert row.p50_us is not None
        assert row.p50_us > 0
        assert row.ratio is not None
        json.dumps(row.as_record(), allow_nan=False)


def test_the_command_prints_them(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "posting", "--seconds", "0.005", "--json"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["op"] for line in out.splitlines()] == ["read_into", "write", "load", "readv"]
    assert err.startswith("farpool: measured on ")
