"""How tables and progress bars look, the same in every command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table

__all__ = ["Advance", "console", "fields_table", "progress_bar", "rows_table"]


Advance = Callable[[int], None]
"""Moves a progress bar on by some bytes."""


def console(*, stderr: bool = False) -> Console:
    """Return a console that neither guesses at markup nor colours numbers."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def fields_table() -> Table:
    """Return an empty table of names and values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def rows_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with a head; the columns in *right* hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


@contextmanager
def progress_bar(label: str, nbytes: int) -> Generator[Advance]:
    """Show how far a transfer of *nbytes* has come; nothing is drawn when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda nbytes: None
        return
    progress = Progress(
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        console=console(stderr=True),
        transient=True,
    )
    with progress:
        task = progress.add_task(label, total=nbytes)
        yield lambda nbytes: progress.advance(task, nbytes)
