"""What ``farpool perf limits`` found, as a table for people: readable at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.table import Table

from farpool.perf.bounds import ADDED, RATE, Outcome
from farpool.perf.table import SHORT_LIMITS, three_digits

__all__ = ["render"]


def render(outcomes: Iterable[Outcome]) -> Table:
    """Return one line for each bound, and how many are kept below."""
    kept = list(outcomes)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False, header_style="bold")
    table.add_column("what", no_wrap=True)
    table.add_column("ours", justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for name in ("ratio", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("met", no_wrap=True)
    for outcome in kept:
        table.add_row(
            outcome.what,
            f"{three_digits(outcome.ours)} {outcome.unit}",
            f"{three_digits(outcome.limit)} {SHORT_LIMITS.get(outcome.limit_name, outcome.limit_name)}",
            f"{outcome.ratio:.2f}",
            _bound(outcome),
            "yes" if outcome.met else "no",
        )
    met = sum(outcome.met for outcome in kept)
    table.caption = f"{met} of {len(kept)} bounds are kept; ratio: ours over the limit, median of rounds in turns"
    table.caption_justify = "left"
    return table


def _bound(outcome: Outcome) -> str:
    if outcome.kind == ADDED:
        return f"+{outcome.bound:g} {outcome.unit}"
    return f"{'>=' if outcome.kind == RATE else '<='} {outcome.bound:g}"
