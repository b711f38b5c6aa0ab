"""The audit log: who asked for what, and what came of it, for each administrative act and each refusal that is seen.

One JSON object a line, to a file of its own or to the server's log. No request has a secret in what is noted of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from farpool.protocol.errors import (
    AuthenticationFailed,
    FarpoolError,
    PermissionDenied,
    QuotaExceeded,
    ReadOnly,
)
from farpool.protocol.message_base import Request
from farpool.server.peers import Peer
from farpool.server.rationing import Allowance
from farpool.server.sessions import Session
from farpool.server.settings import ConfigurationError

__all__ = ["REFUSALS", "AuditLog"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.audit")

REFUSALS: Final = (AuthenticationFailed, PermissionDenied, QuotaExceeded, ReadOnly)
"""Errors that say that somebody wanted what he may not have."""

OBJECT_FIELDS: Final = ("tenant", "name", "id", "slab", "mode", "host", "expires", "force", "end_sessions")
"""Fields of requests that say what an act was done to, and how."""

LONGEST_TEXT: Final = 256


class AuditLog:
    """An open log. The loop's thread alone uses it.

    Raises:
        ConfigurationError: the file cannot be opened.
    """

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        self.path = path
        self._allowance = Allowance(clock)
        self._suppressed = 0
        self._broken = False
        self._fd = -1
        if path:
            try:
                self._fd = _open(path)
            except OSError as error:
                raise ConfigurationError(
                    f"cannot open the audit log {path}: {error.strerror}; make its directory, or change audit_log"
                ) from None

    def act(self, peer: Peer, session: Session | None, request: Request) -> None:
        """Note an administrative act that was done."""
        self.note(_who(peer, session), request.operation, _object_of(request), "done")

    def refusal(self, peer: Peer, session: Session | None, request: Request, error: FarpoolError) -> None:
        """Note that something was refused, or that an act failed which would have been noted."""
        who = _who(peer, session)
        if session is None:
            who["tenant"] = getattr(request, "tenant", None)
        outcome = "refused" if isinstance(error, REFUSALS) else "failed"
        self._refuse(who, request.operation, _object_of(request), outcome, error)

    def handshake(self, peer: Peer, error: FarpoolError) -> None:
        """Note that a client's certificate was refused, before it could ask for anything."""
        self._refuse(_who(peer, None), "handshake", {}, "refused", error)

    def data_refusal(self, transport: str, act: str, error: FarpoolError, about: Mapping[str, Any]) -> None:
        """Note what a data plane has refused; ``more`` were refused so quickly that it could not tell of each."""
        self._suppressed += about.get("more", 0)
        who = {
            "uid": about.get("uid"),
            "pid": about.get("pid"),
            "address": about.get("peer", ""),
            "tenant": about.get("tenant"),
            "session": about.get("session"),
            "administrator": False,
        }
        slab = about.get("slab")
        self._refuse(who, act, {} if slab is None else {"slab": slab}, "refused", error, transport=transport)

    def note(self, who: Mapping[str, Any], act: str, about: Mapping[str, Any], outcome: str, **more: Any) -> None:
        """Write one line."""
        record = {"time": datetime.now(UTC).isoformat(), **who, "act": act, "object": dict(about), "outcome": outcome}
        record |= {key: _short(value) for key, value in more.items()}
        if self._suppressed:
            record["suppressed"], self._suppressed = self._suppressed, 0
        if self._fd < 0:
            line = {key: value for key, value in record.items() if key != "time"}
            (log.info if outcome == "done" else log.warning)("audit", logger="farpool.audit", **line)
            return
        self._write(json.dumps(record).encode() + b"\n")

    def reopen(self) -> None:
        """Open the file anew: the one that had its name may have been moved away."""
        if self._fd < 0:
            return
        try:
            fresh = _open(self.path)
        except OSError as error:
            log.error("audit log not opened again; the old file is written on", path=self.path, error=error.strerror)
            return
        os.close(self._fd)
        self._fd = fresh
        self._broken = False

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _refuse(
        self, who: Mapping[str, Any], act: str, about: Mapping[str, Any], outcome: str, error: FarpoolError, **more: Any
    ) -> None:
        if self._allowance.take():
            self.note(who, act, about, outcome, error=type(error).__name__, reason=error.message, **more)
        else:
            self._suppressed += 1

    def _write(self, line: bytes) -> None:
        try:
            # One write of a file that is open for appending: no other process's line comes in between.
            if os.write(self._fd, line) == len(line):
                self._broken = False
                return
            reason = "no space left"
        except OSError as error:
            reason = error.strerror or str(error)
        if not self._broken:
            log.error("audit log cannot be written; what it misses follows here", path=self.path, error=reason)
            self._broken = True
        log.warning("audit", logger="farpool.audit", line=line.decode().strip())


def _open(path: str) -> int:
    # Never blocking: should it be a pipe that nobody reads, the lines go to the server's log.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o600)


def _who(peer: Peer, session: Session | None) -> dict[str, Any]:
    return {
        "uid": peer.uid,
        "pid": peer.pid,
        "address": str(peer),
        "tenant": None if session is None else session.tenant,
        "session": None if session is None else session.id,
        "administrator": peer.administrator,
    }


def _object_of(request: Request) -> dict[str, Any]:
    found = {key: getattr(request, key, None) for key in OBJECT_FIELDS}
    return {key: _short(value) for key, value in found.items() if value is not None and value is not False}


def _short(value: Any) -> Any:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
