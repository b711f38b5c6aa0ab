"""``farpool serve``: run a pool server in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from farpool.cli.options import parse_seconds, split_names
from farpool.protocol.errors import InvalidArgument
from farpool.server.app import serve as serve_pool
from farpool.server.settings import ConfigurationError, load_settings

__all__ = ["serve"]


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A farpool.toml; other options override it."),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option("--capacity", metavar="SIZE", help="Bytes for slabs, like 4GiB. Default 1GiB."),
    ] = None,
    arena: Annotated[
        Path | None,
        typer.Option("--arena", metavar="DIR", help="A directory on a memory file system. Default below /dev/shm."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="The control plane's port. Default 127.0.0.1:7700."),
    ] = None,
    unix: Annotated[
        Path | None, typer.Option("--unix", metavar="PATH", help="The control plane's Unix socket.")
    ] = None,
    data_listen: Annotated[
        str | None,
        typer.Option("--data-listen", metavar="HOST:PORT", help="The tcp data plane's port. Default 127.0.0.1:0."),
    ] = None,
    transports: Annotated[
        str | None, typer.Option("--transports", metavar="NAMES", help="What to offer. Default cxl,tcp.")
    ] = None,
    session_timeout: Annotated[
        float | None,
        typer.Option(
            "--session-timeout",
            parser=parse_seconds,
            metavar="SECONDS",
            help="Silence that ends a session. Default 10.",
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default info."),
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", metavar="FORMAT", help="auto, json or console. Default auto."),
    ] = None,
) -> None:
    """Run a pool server; it prints one line when it is ready, and logs to stderr.

    SIGTERM lets clients finish for at most 5 seconds, a second one ends at once; SIGHUP reads the file again.
    """
    given: dict[str, Any] = {
        "capacity": capacity,
        "arena": None if arena is None else str(arena),
        "listen": listen,
        "unix": None if unix is None else str(unix),
        "data_listen": data_listen,
        "transports": None if transports is None else list(split_names(transports)),
        "session_timeout": session_timeout,
        "log_level": log_level,
        "log_format": log_format,
    }
    _run(config, {name: value for name, value in given.items() if value is not None})


def _run(config: Path | None, overrides: dict[str, Any]) -> None:
    try:
        serve_pool(load_settings(config, overrides))
    except ConfigurationError as error:
        raise InvalidArgument(error.message) from error
