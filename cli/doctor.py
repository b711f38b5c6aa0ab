"""``farpool doctor``: look at what each transport needs on this machine, and say what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.text import Text

from farpool.cli.checks import examine
from farpool.cli.exit_codes import ExitCode
from farpool.cli.findings import Finding, Row, Subject
from farpool.cli.options import AsJson, Timeout, Url
from farpool.cli.output import print_record
from farpool.cli.screens import console, rows_table

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(url: Url = None, as_json: AsJson = False, timeout: Timeout = 2.0) -> None:
    """Check this machine for Farpool and print what mends each finding; exit 1 if one fails."""
    findings: list[Finding] = []
    for finding in examine(Subject(url=url, timeout=timeout)):
        findings.append(finding)
        if as_json:
            print_record(asdict(finding))
    if not as_json:
        _show(findings)
    if any(finding.level == "fail" for finding in findings):
        raise typer.Exit(ExitCode.OTHER)


def _lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of a finding, aligned; what is true shows as its column's name."""
    if not rows:
        return []
    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    table = [[name if name != "chosen" else "" for name in rows[0]], *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]


def _cell(name: str, value: str | int | bool) -> str:
    return (name if value else "") if isinstance(value, bool) else str(value)


def _show(findings: Sequence[Finding]) -> None:
    table = rows_table("", "check", "finding")
    for finding in findings:
        text = Text(finding.message)
        for line in _lines(finding.rows):
            text.append(f"\n{line}", style="dim")
        if finding.mend:
            text.append(f"\n{finding.mend}", style="cyan")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.check, text)
    screen = console()
    screen.print(table)
    screen.print()
    counts = {level: sum(finding.level == level for finding in findings) for level in _STYLES}
    screen.print(", ".join(f"{count} {level}" for level, count in counts.items()))
