"""``farpool perf``: measure a pool beside the machine's own limits."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

import farpool
from farpool.cli.options import AsJson, Url, parse_seconds, split_names
from farpool.cli.output import print_record, warn
from farpool.cli.screens import console
from farpool.perf import quick as harness
from farpool.perf.environment import fingerprint
from farpool.perf.table import render

__all__ = ["app"]

app = typer.Typer(
    help="Measure a pool beside the machine's own limits.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  typer calls it
    """Measure a pool beside the machine's own limits."""


@app.command("quick")
def quick(
    url: Url = None,
    as_json: AsJson = False,
    transports: Annotated[
        str,
        typer.Option("--transports", metavar="NAMES", help="Which to measure, in this order."),
    ] = "cxl,tcp,rdma",
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            parser=parse_seconds,
            metavar="SECONDS",
            help="Time for one measurement, for us and once more for its limit.",
        ),
    ] = 0.25,
) -> None:
    """Measure the usual operations and sizes; without --url a server is started for it."""
    names = split_names(transports)
    if not names:
        raise typer.BadParameter("--transports names no transport; write for example cxl,tcp")
    warn(f"measured on {fingerprint()}")
    with _pool_at(url) as address:
        if as_json:
            _print_rows(address, names, seconds)
        else:
            _draw_table(address, names, seconds)


@contextmanager
def _pool_at(url: str | None) -> Generator[str]:
    """Yield the pool's address; that of an embedded server if there is none."""
    if url is not None:
        yield url
        return
    with farpool.serve_embedded() as server:
        yield server.url


def _print_rows(url: str, names: tuple[str, ...], seconds: float) -> None:
    for row in harness.run(url, names, seconds):
        print_record(row.as_record())


def _draw_table(url: str, names: tuple[str, ...], seconds: float) -> None:
    with console(stderr=True).status("measuring") as status:
        rows = list(harness.run(url, names, seconds, lambda text: status.update(f"measuring {text}")))
    console().print(render(rows))
