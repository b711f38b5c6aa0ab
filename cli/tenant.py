"""``farpool tenant``: who may use the pool. For administrators, on the server's host."""

from __future__ import annotations

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farpool.cli.options import AsJson, Timeout, Url
from farpool.cli.output import print_record, print_struct, warn
from farpool.cli.quota import usage_of
from farpool.cli.screens import console, rows_table
from farpool.client.administration import Administration, new_token
from farpool.protocol.credentials import format_token
from farpool.protocol.errors import InvalidArgument

if TYPE_CHECKING:
    from farpool.protocol.tenant_messages import TenantInfo

__all__ = ["app"]

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", show_default=False)]
TokenFile = Annotated[
    str | None,
    typer.Option("--token-file", metavar="FILE", help="Write the token there, for its owner alone, and not to stdout."),
]


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]  typer calls it
    """Say who may use the pool: its tenants and their tokens. For root or the server's own user, on its host."""


@app.command()
def add(
    name: Name,
    token_file: TokenFile = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Make none: open to all where authentication is not required.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Make a tenant, and print its token: this once, the server keeps no copy."""
    if no_token:
        if token_file is not None:
            raise typer.BadParameter("--no-token makes no token to write to --token-file")
        with Administration(url, timeout) as administration:
            administration.add_tenant(name, None)
        _tell(name, None, None, as_json)
        return
    token = new_token()
    with _kept(token, token_file, fresh=True), Administration(url, timeout) as administration:
        administration.add_tenant(name, token)
    _tell(name, token, token_file, as_json)


@app.command()
def rotate(
    name: Name,
    token_file: TokenFile = None,
    end_sessions: Annotated[
        bool, typer.Option("--end-sessions", help="End the sessions that the old token opened.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
) -> None:
    """Give a tenant another token, and print it; the one before opens no session any more."""
    token = new_token()
    with _kept(token, token_file), Administration(url, timeout) as administration:
        administration.rotate_token(name, token, end_sessions=end_sessions)
    _tell(name, token, token_file, as_json)


@app.command()
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="End its sessions and free its slabs too.")] = False,
    url: Url = None,
    timeout: Timeout = 10.0,
) -> None:
    """Remove a tenant; one that has sessions or slabs stays without --force."""
    with Administration(url, timeout) as administration:
        administration.remove_tenant(name, force=force)


@app.command(name="list")
def list_(url: Url = None, as_json: AsJson = False, timeout: Timeout = 10.0) -> None:
    """List the tenants: how each is known, and what it has."""
    with Administration(url, timeout) as administration:
        tenants = administration.tenants()
    if as_json:
        for info in tenants:
            print_struct(info)
        return
    columns = ("bytes", "slabs", "sessions", "requests/s")
    table = rows_table("tenant", "known by", *columns, right=columns)
    for info in tenants:
        table.add_row(info.name, _known_by(info), *usage_of(info))
    console().print(table)


def _known_by(info: TenantInfo) -> str:
    means = ["token"] if info.token else []
    means += [f"uid {uid}" for uid in info.uids]
    means += [f"certificate {name}" for name in info.certificates]
    return ", ".join(means) or "nothing"


def _tell(name: str, token: bytes | None, token_file: str | None, as_json: bool) -> None:
    if as_json:
        record = {"tenant": name}
        if token_file is not None:
            record["token_file"] = token_file
        elif token is not None:
            record["token"] = format_token(token)
        print_record(record)
    elif token is not None and token_file is None:
        print(format_token(token))
        warn("this is the only time that the token is shown; rotate makes another one")


@contextmanager
def _kept(token: bytes, path: str | None, *, fresh: bool = False) -> Generator[None]:
    """Write the token beside *path* first, and give it that name once the server knows it.

    With *fresh* a file that is there already stays: it may be the only copy of another token.
    """
    if path is None:
        yield
        return
    if fresh and os.path.lexists(path):
        raise _taken(path)
    hidden = Path(f"{path}.{secrets.token_hex(4)}")
    try:
        fd = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{format_token(token)}\n")
    except OSError as error:
        with suppress(OSError):
            hidden.unlink()
        raise InvalidArgument(f"the token cannot be written to {path}: {error.strerror}; nothing was changed") from None
    try:
        yield
        if fresh:
            _name(hidden, path)
        else:
            hidden.replace(path)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise


def _name(hidden: Path, path: str) -> None:
    """Give the file its name; should that have been taken meanwhile the file stays, the only copy, under its own."""
    try:
        os.link(hidden, path, follow_symlinks=False)
    except FileExistsError:
        warn(f"{path} has come to be meanwhile and stays; the token is in {hidden}")
    except OSError:  # a file system without links
        hidden.replace(path)
    else:
        hidden.unlink()


def _taken(path: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} is there already, and may be the only copy of another token; nothing was changed: name another file, "
        "or remove that one (farpool tenant rotate replaces a tenant's token and its file)"
    )
