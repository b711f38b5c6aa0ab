"""Where a pool is reached: ``farpool://HOST:PORT``, ``farpools://`` with TLS, ``unix:///PATH``. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from farpool.protocol.errors import InvalidArgument

__all__ = ["DEFAULT_PORT", "Address", "default_socket_path", "fill_host", "parse_address", "parse_host_port"]

DEFAULT_PORT = 7700
MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket: sun_path holds 108 bytes with its NUL (unix(7))."""


@dataclass(frozen=True, slots=True)
class Address:
    """One parsed address; either ``path`` is set (a Unix socket) or ``host`` and ``port`` are."""

    host: str = ""
    port: int = 0
    path: str = ""
    tls: bool = False
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'farpools' if self.tls else 'farpool'}://{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Parse the URL of a pool.

    Raises:
        InvalidArgument: an unknown scheme, a port out of range, a path that no Unix socket can have.
    """
    hint = "write farpool://HOST:PORT, farpools://HOST:PORT or unix:///PATH"
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgument(f"a pool's address is a string, not {type(url).__name__}; {hint}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidArgument(f"address {url!r} is not usable ({error}); {hint}") from None
    options = tuple(parse_qsl(parts.query))
    if parts.scheme == "unix":
        if parts.netloc:
            raise InvalidArgument(f"address {url!r} needs three slashes: unix:///PATH")
        return Address(path=validate_socket_path(unquote(parts.path)), options=options)
    if parts.scheme not in ("farpool", "farpools"):
        raise InvalidArgument(f"address {url!r} has no scheme that Farpool knows; {hint}")
    if not parts.hostname or parts.path not in ("", "/") or parts.username is not None:
        raise InvalidArgument(f"address {url!r} must be a host and a port; {hint}")
    if port == 0:
        raise InvalidArgument(
            f"address {url!r} has port 0, where nobody can listen; a server's default is {DEFAULT_PORT}"
        )
    port = DEFAULT_PORT if port is None else port
    return Address(host=parts.hostname, port=port, tls=parts.scheme == "farpools", options=options)


def validate_socket_path(path: str) -> str:
    """Return *path* if a Unix socket can be bound there; raises :class:`InvalidArgument` otherwise."""
    if "\0" in path:
        raise InvalidArgument(f"the socket path {path!r} has a NUL character, which no file name can have")
    if not path.startswith("/"):
        raise InvalidArgument(f"the socket path {path!r} must be absolute")
    if len(path.encode("utf-8", "surrogateescape")) > MAX_SOCKET_PATH_BYTES:
        raise InvalidArgument(
            f"the socket path {path!r} is over {MAX_SOCKET_PATH_BYTES} bytes, the kernel's limit; choose a shorter one"
        )
    return path


def fill_host(params: Mapping[str, Any], address: Address) -> dict[str, Any]:
    """Return a transport's *params* with the host filled in that the control plane was reached at.

    A server that listens everywhere cannot know by which of its names a client sees it, so it offers an empty host.
    """
    if params.get("host") != "":
        return dict(params)
    return {**params, "host": address.host or "127.0.0.1"}


def parse_host_port(text: str, *, what: str = "address") -> tuple[str, int]:
    """Parse ``HOST:PORT`` or ``[IPV6]:PORT``; port 0 lets the kernel choose.

    Raises:
        InvalidArgument: no port, or not a number between 0 and 65535.
    """
    host, separator, port_text = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port_text.isascii() or not port_text.isdigit() or int(port_text) > 65535:
        raise InvalidArgument(f"{what} {text!r} is not HOST:PORT, for example 127.0.0.1:{DEFAULT_PORT}")
    return host, int(port_text)


def default_socket_path(environment: Mapping[str, str], uid: int) -> str:
    """Return where server and client meet when nobody says: the same rule on both sides (docs/design.md)."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime and runtime.startswith("/"):
        return f"{runtime}/farpool.sock"
    return "/run/farpool.sock" if uid == 0 else f"/tmp/farpool-{uid}/farpool.sock"  # noqa: S108
