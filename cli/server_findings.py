"""What ``farpool doctor`` says of the pool's server, and of each transport to it."""

from __future__ import annotations

from collections.abc import Iterator

import farpool
from farpool.cli.findings import Finding, Subject
from farpool.protocol.errors import FarpoolError, ServerLost, TransportUnavailable
from farpool.transports.registry import transport_names

__all__ = ["server"]


def server(subject: Subject) -> Iterator[Finding]:
    """Ask the pool's server, and try each transport to it."""
    try:
        with farpool.connect(subject.url, timeout=subject.timeout) as pool:
            stat = pool.stat()
            process = f"pid {stat.pid}, " if stat.pid else ""
            yield Finding("server", "ok", f"{stat.server} at {pool.url}, {process}{stat.state}")
    except TransportUnavailable as error:
        yield Finding("server", "fail", error.message)
    except ServerLost as error:
        yield Finding("server", "warn" if subject.url is None else "fail", error.message, "farpool serve")
        return
    except FarpoolError as error:  # it is there: stopped, full or of another release
        yield Finding("server", "fail", error.message)
        return
    for name in transport_names():
        yield _transport(name, subject)


def _transport(name: str, subject: Subject) -> Finding:
    title = f"{name} transport"
    try:
        farpool.connect(subject.url, transport=name, timeout=subject.timeout).close()
    except TransportUnavailable as error:
        return Finding(title, "warn", error.message)
    return Finding(title, "ok", "usable from here")
