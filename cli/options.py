"""The options that several commands share, declared once so that they read the same everywhere."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from farpool.protocol.errors import InvalidArgument
from farpool.protocol.units import Lease, parse_lease

__all__ = [
    "AsJson",
    "DataTransport",
    "KeptLease",
    "Tenant",
    "Timeout",
    "Url",
    "forget_credentials",
    "name_or_id",
    "parse_kept_lease",
    "parse_seconds",
    "split_names",
]

MAX_SECONDS = 86400.0


def parse_seconds(text: str | float) -> float:
    """Return a number of seconds above 0 and at most a day; raises ``typer.BadParameter``."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        raise typer.BadParameter(f"{text!r} is not a number of seconds above 0 and at most {MAX_SECONDS:.0f}")
    return seconds


def parse_kept_lease(text: str) -> Lease:
    """Return the lease of a slab that outlives the command which makes it.

    Raises:
        InvalidArgument: not a lease, or ``session``: that one would end together with the command.
    """
    lease = parse_lease(text)
    if lease == "session":
        raise InvalidArgument("a session lease would end with this command; use --lease SECONDS or --lease persistent")
    return lease


def name_or_id(target: str) -> str | int:
    """Return the id that *target* spells, or the name that it is."""
    return int(target) if target.isascii() and target.isdigit() else target


def forget_credentials() -> None:
    """Take the tenant and token out of the environment: they are for the user's pool, not for one that we start."""
    for name in ("FARPOOL_TENANT", "FARPOOL_TOKEN", "FARPOOL_TOKEN_FILE"):
        os.environ.pop(name, None)


def split_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list, without blanks and repetitions."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="FARPOOL_URL",
        metavar="URL",
        help="The pool: farpool://HOST:PORT, farpools:// with TLS, or unix:///PATH. Default: this host's.",
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        envvar="FARPOOL_TENANT",
        metavar="NAME",
        help="Whose slabs; its token comes from FARPOOL_TOKEN or FARPOOL_TOKEN_FILE.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for a program to read.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", parser=parse_seconds, metavar="SECONDS", help="Deadline of each operation."),
]
DataTransport = Annotated[
    str,
    typer.Option("--transport", metavar="NAME", help="How the bytes travel: cxl, tcp, or auto for the fastest."),
]
KeptLease = Annotated[
    str,
    typer.Option("--lease", metavar="LEASE", help="persistent, or SECONDS that the slab lives on."),
]
