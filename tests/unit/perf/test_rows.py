"""Rows as JSON, and as a table."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from farpool.perf.rows import PYVERBS_ROWS, Row, unavailable
from farpool.perf.table import render

FIELDS = [
    "transport", "op", "nbytes", "batch", "clients", "p50_us", "p99_us",
    "ops_s", "gb_s", "limit", "ratio", "emulated", "reason",
    "limit_name", "limit_unit", "server_cpu_s_per_gb",
]  # fmt: skip
"""The first thirteen are those of docs/design.md, in its order."""

MEASURED = Row(
    transport="cxl",
    op="read_into",
    nbytes=1 << 20,
    batch=1,
    clients=1,
    p50_us=81.23456789,
    p99_us=120.0,
    ops_s=12_345.678,
    gb_s=12.9,
    limit=13.1,
    ratio=0.98473,
    emulated=True,
    limit_name="memcpy",
    limit_unit="GB/s",
    server_cpu_s_per_gb=0.0001,
)
ROWS = [
    Row(
        transport="control",
        op="allocate+free",
        nbytes=64 << 10,
        batch=1,
        clients=1,
        p50_us=210.5,
        p99_us=1234.5,
        ops_s=4_500.0,
        limit=31.2,
        ratio=0.148,
        limit_name="kernel alone",
        limit_unit="us",
    ),
    MEASURED,
    Row(
        transport="tcp",
        op="readv",
        nbytes=4096,
        batch=32,
        clients=1,
        p50_us=61.0,
        p99_us=99.9,
        ops_s=524_000.0,
        gb_s=2.1,
        limit=2.9,
        ratio=0.72,
        limit_name="raw tcp ping-pong",
        limit_unit="GB/s",
        server_cpu_s_per_gb=0.2,
    ),
    Row(
        transport=PYVERBS_ROWS,
        op="read_into",
        nbytes=64,
        batch=1,
        clients=1,
        p50_us=876.6,
        p99_us=2139.7,
        ops_s=1_016.0,
        gb_s=0.0001,
        limit=53.8,
        ratio=0.061,
        emulated=True,
        limit_name="ib_read_lat",
        limit_unit="us",
    ),
    unavailable("rdma", 'there is no transport "rdma"; installed are cxl, tcp (or "auto")'),
]


def test_a_record_has_every_field_and_five_digits() -> None:
    record = json.loads(json.dumps(MEASURED.as_record(), allow_nan=False))
    assert list(record) == FIELDS
    assert record["p50_us"] == 81.235
    assert (record["nbytes"], record["emulated"], record["reason"]) == (1 << 20, True, "")


def test_what_is_not_measured_has_a_reason_and_no_numbers() -> None:
    record = unavailable("rdma", "no device").as_record()
    assert list(record) == FIELDS
    assert (record["transport"], record["reason"], record["emulated"]) == ("rdma", "no device", False)
    assert all(record[name] is None for name in FIELDS[2:11])


def drawn(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(render(ROWS))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_is_whole(width: int) -> None:
    lines = drawn(width)
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    for expected in (
        "allocate+free 64 KiB",
        "cxl* read_into 1 MiB",
        "pyverbs* read_into 64 B",
        "tcp readv 32 x 4 KiB",
        "0.98",
        "524k",
    ):
        assert expected in text
    assert "rdma not measured here: there is no transport" in text
    assert "emulated: cxl, pyverbs" in text
    assert "cxl 0.000" in text


def test_an_empty_table_can_be_drawn() -> None:
    text = io.StringIO()
    Console(file=text, width=120).print(render([]))
    assert "transport" in text.getvalue()
    assert "not measured" not in text.getvalue()
