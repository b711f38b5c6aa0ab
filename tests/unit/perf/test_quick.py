"""``quick`` against a real server: whole rows, reasons, limits, and nothing left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

import farpool
from farpool.perf import quick
from farpool.perf.rows import Row
from farpool.server.embedded import EmbeddedServer

SECONDS = 0.005
SIZES = [64, 4 << 10, 64 << 10, 1 << 20, 8 << 20]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with farpool.serve_embedded(capacity="64MiB") as served:
        yield served


def measured(server: EmbeddedServer, *transports: str) -> list[Row]:
    return list(quick.run(server.url, transports, SECONDS))


def check_measured(row: Row) -> None:
    """Hold a row of numbers to what every such row promises."""
    assert row.reason == ""
    assert row.clients == 1
    assert row.nbytes is not None
    assert row.batch is not None
    for number in (row.p50_us, row.p99_us, row.ops_s, row.limit, row.ratio):
        assert number is not None
        assert number > 0
    bulk = row.gb_s is not None and row.nbytes * row.batch >= 64 << 10
    assert row.limit_unit == ("GB/s" if bulk else "us")
    assert (row.server_cpu_s_per_gb is not None) == bulk
    json.dumps(row.as_record(), allow_nan=False)


@pytest.mark.parametrize("transport", ["cxl", "tcp"])
@pytest.mark.usefixtures("no_leak")
def test_each_operation_is_a_row_with_its_limit(server: EmbeddedServer, transport: str) -> None:
    control, *rows = measured(server, transport)
    assert (control.transport, control.op, control.nbytes) == ("control", "allocate+free", 64 << 10)
    assert (control.limit_name, control.gb_s, control.emulated) == ("kernel alone", None, False)
    for row in (control, *rows):
        check_measured(row)
    if transport == "cxl":
        beside_numpy = rows.pop(0)
        assert (beside_numpy.op, beside_numpy.nbytes) == ("read_into", 64)
        assert beside_numpy.limit_name == "numpy slice copy"
    assert [(row.op, row.nbytes, row.batch) for row in rows] == [
        *(("read_into", nbytes, 1) for nbytes in SIZES),
        *(("write", nbytes, 1) for nbytes in SIZES),
        ("readv", 4096, 32),
        ("readv", 65536, 16),
        ("fetch_add", 8, 1),
        ("load", 8, 1),
    ]
    assert {row.limit_name for row in rows} == (
        {"memcpy", "native word"} if transport == "cxl" else {"raw tcp ping-pong", "raw tcp stream"}
    )
    assert {row.emulated for row in rows} == {transport == "cxl"}


@pytest.mark.usefixtures("no_leak")
def test_slabs_and_processors_are_given_back(server: EmbeddedServer) -> None:
    before = os.sched_getaffinity(0), os.sched_getaffinity(server.pid)
    rows = quick.run(server.url, ("cxl", "tcp"), SECONDS)
    assert [next(rows).transport for _ in range(3)] == ["control", "cxl", "cxl"]
    rows.close()
    assert (os.sched_getaffinity(0), os.sched_getaffinity(server.pid)) == before
    with farpool.connect(server.url) as pool:
        # What a view of a run that was cut off has mapped stays charged as long as this process lives.
        assert [slab for slab in pool.slabs() if slab.state != "reclaiming"] == []


def test_progress_names_what_comes_next(server: EmbeddedServer) -> None:
    told: list[str] = []
    rows = list(quick.run(server.url, ("tcp", "nonesuch"), SECONDS, told.append))
    assert told[:3] == ["control: allocate+free", "tcp", "tcp: read_into 64 B"]
    assert {"tcp: readv 32 x 4 KiB", "tcp: readv 16 x 64 KiB"} < set(told)
    assert told[-1] == "nonesuch"
    assert len(told) == len(rows) + 1


def test_a_transport_that_cannot_be_used_is_a_row_with_its_reason(server: EmbeddedServer) -> None:
    _, missing = measured(server, "nonesuch")
    assert (missing.transport, missing.p50_us, missing.nbytes) == ("nonesuch", None, None)
    assert "nonesuch" in missing.reason
    with farpool.serve_embedded(capacity="64MiB", transports=["tcp"]) as other:
        _, missing = measured(other, "cxl")
    assert missing.transport == "cxl"
    assert "does not offer" in missing.reason


def test_a_server_elsewhere_has_no_limit_over_sockets(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "LOOPBACK", frozenset[str]())
    _, *rows = quick.run(server.tcp_url, ("tcp",), SECONDS)
    assert len(rows) == 14
    for row in rows:
        assert row.p50_us is not None
        assert (row.limit, row.ratio, row.limit_name, row.limit_unit) == (None, None, "", "")


@pytest.mark.parametrize("seconds", [0.0, -1.0, 61.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_refused(server: EmbeddedServer, seconds: float) -> None:
    with pytest.raises(farpool.InvalidArgument):
        next(quick.run(server.url, (), seconds))


def test_a_server_that_is_not_there_is_lost() -> None:
    with pytest.raises(farpool.ServerLost):
        next(quick.run("unix:///nonesuch/farpool.sock"))


def test_a_pool_without_room_says_so() -> None:
    with farpool.serve_embedded(capacity="1MiB") as small:
        rows = quick.run(small.url, ("cxl",), SECONDS)
        assert next(rows).transport == "control"
        with pytest.raises(farpool.PoolFull):
            next(rows)
