"""``farpool serve``: run a pool server in the foreground."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from farpool.cli.options import split_names
from farpool.protocol.errors import InvalidArgument
from farpool.server.app import serve as serve_pool
from farpool.server.settings import ConfigurationError, load_settings

__all__ = ["serve"]


def _setting(flag: str, metavar: str, meaning: str) -> Any:
    """Return an option that overrides one setting of the server; the server itself checks its value."""
    return typer.Option(flag, metavar=metavar, help=meaning, show_default=False)


def serve(
    config: Annotated[str | None, _setting("--config", "FILE", "A farpool.toml; other options override it.")] = None,
    capacity: Annotated[str | None, _setting("--capacity", "SIZE", "Bytes for slabs. Default 1GiB.")] = None,
    arena: Annotated[str | None, _setting("--arena", "PATH", "Directory or /dev/daxX.Y for slabs.")] = None,
    state_dir: Annotated[
        str | None, _setting("--state-dir", "DIR", "Catalog of a device's arena. Default /var/lib/farpool for root.")
    ] = None,
    coherence: Annotated[
        str | None, _setting("--coherence", "KIND", "hardware or software: are hosts' caches coherent?")
    ] = None,
    listen: Annotated[str | None, _setting("--listen", "HOST:PORT", "Control port. Default 127.0.0.1:7700.")] = None,
    unix: Annotated[str | None, _setting("--unix", "PATH", "Control socket. Default: where clients look.")] = None,
    data_listen: Annotated[
        str | None,
        _setting("--data-listen", "HOST:PORT", "Port of the tcp transport. Default: on the host of --listen."),
    ] = None,
    transports: Annotated[str | None, _setting("--transports", "NAMES", "What to offer. Default cxl,tcp.")] = None,
    session_timeout: Annotated[
        str | None, _setting("--session-timeout", "SECONDS", "Silence that ends a session. Default 10.")
    ] = None,
    authentication: Annotated[
        str | None, _setting("--authentication", "KIND", "none or required: must a client be known? Default none.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everybody in who reaches --listen, from other hosts too.")
    ] = False,
    audit_log: Annotated[
        str | None, _setting("--audit-log", "FILE", "Administrative acts and refusals. Default: with the log.")
    ] = None,
    takeover: Annotated[
        bool, typer.Option("--takeover", help="Take the place of the server that runs with these settings.")
    ] = False,
    log_level: Annotated[str | None, _setting("--log-level", "LEVEL", "debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, _setting("--log-format", "FORMAT", "auto, json or console.")] = None,
) -> None:
    """Run a pool server; it prints one line when it is ready, and logs to stderr.

    SIGTERM lets clients finish for at most 5 seconds, a second one ends at once; SIGHUP reads the file again.
    """
    overrides = {
        "capacity": capacity,
        "arena": arena,
        "state_dir": state_dir,
        "coherence": coherence,
        "listen": listen,
        "unix": unix,
        "data_listen": data_listen,
        "transports": None if transports is None else list(split_names(transports)),
        "session_timeout": session_timeout,
        "authentication": authentication,
        "insecure": insecure or None,
        "audit_log": audit_log,
        "log_level": log_level,
        "log_format": log_format,
    }
    try:
        serve_pool(load_settings(config, overrides), takeover=takeover)
    except ConfigurationError as error:
        raise InvalidArgument(error.message) from error
