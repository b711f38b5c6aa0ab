"""The harness on an RDMA device: rows of both bindings, their limits, and that an emulated device is called that."""

from __future__ import annotations

import pytest

import farpool
from farpool.perf import perftest, quick, rdma_reads
from farpool.perf.rdma_port import find_port
from farpool.perf.rows import PYVERBS_ROWS, Row

SECONDS = 0.005


def names_of(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row.transport for row in rows))


def expected_names() -> list[str]:
    return ["rdma", PYVERBS_ROWS] if quick.has_pyverbs() else ["rdma"]


@pytest.mark.usefixtures("rdma_device")
def test_quick_has_rows_of_each_binding() -> None:
    with farpool.serve_embedded(transports=["rdma"], capacity="128MiB") as server:
        control, *rows = quick.run(server.url, ["rdma"], SECONDS)
    assert control.transport == "control"
    assert names_of(rows) == expected_names()
    port = find_port()
    for row in rows:
        assert (row.reason, row.limit_name) == ("", "bare verbs")
        assert row.emulated == (port is not None and port.emulated)


@pytest.mark.usefixtures("rdma_device")
def test_reads_stand_beside_perftest() -> None:
    with farpool.serve_embedded(transports=["rdma"], capacity="128MiB") as server:
        rows = list(rdma_reads.run(server.url, SECONDS))
    assert names_of(rows) == expected_names()
    limits = {row.limit_name for row in rows}
    assert limits == {"bare verbs", *(perftest.COLUMNS if perftest.is_installed() else ())}
    assert all(row.ratio is not None for row in rows)
