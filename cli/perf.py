"""``farpool perf``: measure a pool beside the machine's own limits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

import farpool
from farpool.cli.options import AsJson, Url, forget_credentials, parse_seconds, split_names
from farpool.cli.output import print_record, warn
from farpool.cli.screens import console
from farpool.perf import quick as harness
from farpool.perf import table
from farpool.perf.environment import fingerprint
from farpool.perf.rows import Row

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  typer calls it
    """Measure transports beside their limits."""


@app.command()
def quick(
    url: Url = None,
    as_json: AsJson = False,
    transports: Annotated[
        str,
        typer.Option("--transports", metavar="NAMES", help="Which to measure, in this order."),
    ] = ",".join(harness.TRANSPORTS),
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            parser=parse_seconds,
            metavar="SECONDS",
            help="Time for one measurement, and once more for its limit.",
        ),
    ] = 0.25,
) -> None:
    """Measure the usual operations and sizes.

    Without --url a server is started for it.
    """
    names = split_names(transports)
    if not names:
        raise typer.BadParameter(f"--transports {transports!r} names none; write for example cxl,tcp")
    facts = fingerprint()
    with _pool_at(url) as address:
        if as_json:
            for row in harness.run(address, names, seconds):
                print_record(row.as_record())
        else:
            console().print(table.render(_measure(address, names, seconds)))
    warn(f"measured on {facts}")


@contextmanager
def _pool_at(url: str | None) -> Generator[str]:
    """Yield the pool's address; without one, that of a server which lives as long as the block."""
    if url is not None:
        yield url
        return
    forget_credentials()
    with farpool.serve_embedded(transports=harness.TRANSPORTS) as server:
        yield server.url


def _measure(url: str, names: Sequence[str], seconds: float) -> list[Row]:
    """Return all rows; meanwhile stderr shows what is measured, if it is a terminal."""
    screen = console(stderr=True)
    with screen.status("measuring") as status:
        return list(harness.run(url, names, seconds, lambda text: status.update(f"measuring {text}")))
