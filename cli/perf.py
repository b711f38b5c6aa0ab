"""``farpool perf``: measure a pool beside the machine's own limits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Annotated

import typer

import farpool
from farpool.cli.options import AsJson, Url, forget_credentials, parse_seconds, split_names
from farpool.cli.output import print_record, warn
from farpool.cli.screens import console
from farpool.perf import limit_suite, posting, rdma_reads, table, verdicts
from farpool.perf import quick as harness
from farpool.perf.environment import fingerprint
from farpool.perf.rows import Row

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  typer calls it
    """Measure transports beside their limits."""


Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        parser=parse_seconds,
        metavar="SECONDS",
        help="Time for one measurement, and once more for its limit.",
    ),
]

Arena = Annotated[
    str | None,
    typer.Option(
        "--arena",
        envvar="FARPOOL_ARENA",
        metavar="PATH",
        help="Directory or /dev/daxX.Y for the server that is started. Default: a new one in shared memory.",
        show_default=False,
    ),
]


@app.command()
def quick(
    url: Url = None,
    as_json: AsJson = False,
    transports: Annotated[
        str,
        typer.Option("--transports", metavar="NAMES", help="Which to measure, in this order."),
    ] = ",".join(harness.TRANSPORTS),
    arena: Arena = None,
    seconds: Seconds = 0.25,
) -> None:
    """Measure the usual operations and sizes.

    Without --url a server is started for it.
    """
    names = split_names(transports)
    if not names:
        raise typer.BadParameter(f"--transports {transports!r} names none; write for example cxl,tcp")
    with _pool_at(url, arena) as address:
        _show(lambda tell: harness.run(address, names, seconds, tell), as_json=as_json)


@app.command()
def rdma(url: Url = None, as_json: AsJson = False, seconds: Seconds = 1.0) -> None:
    """Measure reads over RDMA beside perftest's programs, bare verbs and pyverbs.

    The server must be on this host; without --url one is started. ib_read_lat and ib_read_bw are used where they are
    installed.
    """
    with _pool_at(url, None) as address:
        _show(lambda tell: rdma_reads.run(address, seconds, tell), as_json=as_json)


@app.command()
def limits(as_json: AsJson = False, seconds: Seconds = 1.0) -> None:
    """Judge what Farpool costs on top of memcpy, raw sockets and the kernel.

    A server is started for it. It takes about two seconds for each second and line.
    """
    facts = fingerprint()
    if as_json:
        for outcome in limit_suite.run(seconds):
            print_record(outcome.as_record())
    else:
        with console(stderr=True).status("measuring") as status:
            outcomes = list(limit_suite.run(seconds, lambda text: status.update(f"measuring {text}")))
        console().print(verdicts.render(outcomes))
    warn(f"measured on {facts}")


@app.command("posting")
def posting_command(as_json: AsJson = False, seconds: Seconds = 0.25) -> None:
    """Measure what a small operation of rdma costs up to the device's doorbell; it needs no device."""
    _show(lambda _: posting.run(seconds), as_json=as_json)


@contextmanager
def _pool_at(url: str | None, arena: str | None) -> Generator[str]:
    """Yield the pool's address; without one, that of a server which lives as long as the block."""
    if url is not None:
        yield url
        return
    forget_credentials()
    with farpool.serve_embedded(transports=harness.TRANSPORTS, arena=arena) as server:
        yield server.url


def _show(run: Callable[[harness.Progress], Iterable[Row]], *, as_json: bool) -> None:
    """Print the rows as they come, or all as a table; meanwhile stderr shows what is measured, if it is a terminal."""
    facts = fingerprint()
    if as_json:
        for row in run(lambda _: None):
            print_record(row.as_record())
    else:
        with console(stderr=True).status("measuring") as status:
            rows = list(run(lambda text: status.update(f"measuring {text}")))
        console().print(table.render(rows))
    warn(f"measured on {facts}")
