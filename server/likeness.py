"""What a successor's settings must have in common with those of the server that it takes over from. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from farpool.protocol.addresses import parse_host_port
from farpool.server.settings import ServerSettings

__all__ = ["differences", "exposure_of"]


def exposure_of(settings: ServerSettings, port: int | None = None) -> dict[str, str]:
    """Return who reaches a server with these settings, and who gets in, by setting; *port* is where it listens now."""
    tls = settings.tls
    certificates = "none"
    if tls is not None and tls.client_ca:
        certificates = "required" if tls.requires_certificate else "asked for"
    host = settings.listen.rpartition(":")[0]
    return {
        "listen": settings.listen if port is None else f"{host}:{port}",
        "data_listen": settings.data_address,
        "tls": "off" if tls is None else "on",
        "client_certificates": certificates,
        "authentication": settings.authentication,
    }


def differences(running: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """Return what *wanted* would change, a few words each. What a server of another release does not tell is none."""
    return [
        f"{name} is {running[name]}, and would be {value}"
        for name, value in wanted.items()
        if name in running and not _fits(name, running[name], value)
    ]


def _fits(name: str, running: str, wanted: str) -> bool:
    if name == "listen":
        (host, port), (wanted_host, wanted_port) = parse_host_port(running), parse_host_port(wanted)
        return wanted_host == host and wanted_port in (0, port)  # 0: whatever port there is
    return running == wanted
