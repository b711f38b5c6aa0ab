"""Rows as a table for people: readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from farpool.perf.rows import PYVERBS_ROWS, Row

__all__ = ["SHORT_LIMITS", "render", "three_digits"]

SHORT_LIMITS: Final = {
    "numpy slice copy": "numpy copy",
    "raw tcp ping-pong": "raw ping",
    "raw tcp stream": "raw stream",
    "kernel alone": "kernel",
    "native word": "C atomics",
}
SHORT_TRANSPORTS: Final = {PYVERBS_ROWS: "pyverbs"}
CPU_NBYTES: Final = 1 << 20
"""The read whose server CPU time stands below the table."""


def render(rows: Iterable[Row]) -> Table:
    """Return the table of *rows*, its notes below: what was not measured and why, the server's CPU time."""
    kept = list(rows)
    whole = Table.grid()
    whole.add_column()
    whole.add_row(_measured([row for row in kept if not row.reason]))
    for row in kept:
        if row.reason:
            whole.add_row(Text.assemble((f"{_transport(row):<10}", "bold"), f"not measured here: {row.reason}"))
    whole.add_row("")
    for note in _notes(kept):
        whole.add_row(Text(note, style="dim"))
    return whole


def _measured(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False, header_style="bold")
    for name in ("transport", "operation", "size"):
        table.add_column(name, no_wrap=True)
    for name in ("p50 us", "p99 us", "ops/s", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    before: str | None = None
    for row in rows:
        if before not in (None, row.transport):
            table.add_section()
        before = row.transport
        table.add_row(
            _transport(row) + ("*" if row.emulated else ""),
            row.op,
            _size(row),
            three_digits(row.p50_us),
            three_digits(row.p99_us),
            _count(row.ops_s),
            three_digits(row.gb_s),
            SHORT_LIMITS.get(row.limit_name, row.limit_name),
            "" if row.ratio is None else f"{row.ratio:.2f}",
        )
    return table


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = ["ratio: our speed over the limit's, both measured in turns; 1.00 is as fast"]
    emulated = ", ".join(dict.fromkeys(_transport(row) for row in rows if row.emulated))
    if emulated:
        notes.append(f"* emulated: {emulated}, of which this says nothing about hardware")
    spent = ", ".join(
        f"{_transport(row)} {row.server_cpu_s_per_gb:.3f}"
        for row in rows
        if row.op == "read_into" and row.nbytes == CPU_NBYTES and row.server_cpu_s_per_gb is not None
    )
    if spent:
        notes.append(f"server CPU seconds per GB, 1 MiB reads: {spent}")
    return notes


def _transport(row: Row) -> str:
    return SHORT_TRANSPORTS.get(row.transport, row.transport)


def _size(row: Row) -> str:
    if row.nbytes is None:
        return ""
    value, unit = row.nbytes, "B"
    for larger in ("KiB", "MiB"):
        if value >= 1024:
            value, unit = value // 1024, larger
    batch = f"{row.batch} x " if row.batch is not None and row.batch > 1 else ""
    return f"{batch}{value} {unit}"


def three_digits(value: float | None) -> str:
    """Return a number with as many digits as what was measured is good for."""
    if value is None:
        return ""
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _count(value: float | None) -> str:
    if value is None:
        return ""
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{three_digits(value / scale)}{unit}"
    return three_digits(value)
