"""``farpool quota``: what each tenant may have at most. For administrators, on the server's host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec import UNSET, UnsetType

from farpool.cli.options import AsJson, Timeout, Url
from farpool.cli.output import print_record
from farpool.cli.screens import console, rows_table
from farpool.client.administration import Administration
from farpool.protocol.errors import InvalidArgument
from farpool.protocol.quota_messages import TenantLimit
from farpool.protocol.units import format_bytes, parse_size

if TYPE_CHECKING:
    from farpool.protocol.tenant_messages import TenantInfo

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

T = TypeVar("T")

NO_LIMIT = "none"
KEYS = (*("name", "nbytes", "max_bytes", "slabs", "max_slabs", "sessions", "max_sessions", "max_rate"),)
"""What is shown of a tenant."""


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  typer calls it
    """Say what each tenant may have at most. For root or the server's own user, on its host."""


@app.command()
def show(
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]", help="Default: all of them.")] = None,
    url: Url = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show what tenants use, and what they may use at most."""
    with Administration(url, timeout) as administration:
        found = administration.tenants()
    if tenant is not None:
        found = [info for info in found if info.name == tenant]
        if not found:
            raise InvalidArgument(f"there is no tenant {tenant!r:.80}; see: farpool tenant list")
    if as_json:
        for info in found:
            print_record({key: getattr(info, key) for key in KEYS})
        return
    table = rows_table("tenant", "bytes", "slabs", "sessions", "requests/s", right=("bytes", "slabs", "sessions"))
    for info in found:
        table.add_row(info.name, *usage_of(info))
    console().print(table)


@app.command(name="set")
def set_(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Whose quota.", show_default=False)],
    nbytes: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Such as 8GiB, for all its slabs together; or none.")
    ] = None,
    slabs: Annotated[str | None, typer.Option("--slabs", metavar="N", help="Slabs, drafts included; or none.")] = None,
    sessions: Annotated[str | None, typer.Option("--sessions", metavar="N", help="Open sessions; or none.")] = None,
    rate: Annotated[str | None, typer.Option("--rate", metavar="N", help="Requests a second; or none.")] = None,
    url: Url = None,
    timeout: Timeout = 10.0,
) -> None:
    """Change a tenant's quota now; what is not named stays. What it has over the quota already, it keeps."""
    request = TenantLimit(
        tenant=tenant,
        max_bytes=_limit("--bytes", nbytes, parse_size),
        max_slabs=_limit("--slabs", slabs, _count),
        max_sessions=_limit("--sessions", sessions, _count),
        max_rate=_limit("--rate", rate, _rate),
    )
    if all(value is UNSET for value in (request.max_bytes, request.max_slabs, request.max_sessions, request.max_rate)):
        raise typer.BadParameter("name what to change: --bytes, --slabs, --sessions or --rate")
    with Administration(url, timeout) as administration:
        administration.limit(request)


def usage_of(info: TenantInfo) -> tuple[str, str, str, str]:
    """Return what a table shows of a tenant's bytes, slabs, sessions and rate, each with its limit."""
    return (
        _of(format_bytes(info.nbytes), None if info.max_bytes is None else format_bytes(info.max_bytes)),
        _of(info.slabs, info.max_slabs),
        _of(info.sessions, info.max_sessions),
        "-" if info.max_rate is None else f"{info.max_rate:g}",
    )


def _of(used: Any, limit: Any) -> str:
    return str(used) if limit is None else f"{used} of {limit}"


def _limit(option: str, text: str | None, parse: Callable[[str], T]) -> T | UnsetType | None:
    if text is None:
        return UNSET
    if text == NO_LIMIT:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ValueError(f"{text!r:.40} is not a number from 0 on, nor {NO_LIMIT}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1e9:
        raise ValueError(f"{text!r:.40} is not a number over 0, nor {NO_LIMIT}")
    return rate
