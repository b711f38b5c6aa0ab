"""The settings that a server runs with now: read again when it is told, as far as they change without a restart."""

from __future__ import annotations

from typing import Any, NamedTuple

import structlog

from farpool.server.encryption import Keys
from farpool.server.settings import RELOADABLE, ConfigurationError, ServerSettings, TlsSettings

__all__ = ["Changes", "LiveSettings"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.server")


class Changes(NamedTuple):
    """What a reload has found."""

    now: dict[str, Any]
    """The settings that are new from now on, by name."""
    later: list[str]
    """Names of those that wait for a restart."""
    unread: str
    """Why the certificate of TLS could not be read again; else empty."""


class LiveSettings:
    """What the parts of a server ask of its settings, whenever they need it. The event loop's thread alone uses it."""

    def __init__(self, settings: ServerSettings) -> None:
        self.current = settings

    @property
    def session_timeout(self) -> float:
        """Seconds of silence that end a session."""
        return self.current.session_timeout

    @property
    def disconnect_grace(self) -> float:
        """Seconds in which a session without a connection can be resumed."""
        return self.current.disconnect_grace

    @property
    def resume_grace(self) -> float:
        """Seconds in which a session can be resumed after a restart."""
        return self.current.resume_grace

    @property
    def max_sessions(self) -> int:
        """Sessions that may be open at once."""
        return self.current.max_sessions

    @property
    def heartbeat(self) -> float:
        """Seconds between a client's heartbeats."""
        return self.current.heartbeat

    @property
    def authentication_required(self) -> bool:
        """Whether a client must be known to be let in."""
        return self.current.authentication == "required"

    def reload(self, keys: Keys | None) -> Changes:
        """Read the settings again, and with them the files of *keys*.

        Raises:
            ConfigurationError: they cannot be used; all stay as they were.
        """
        wanted = self.current.reloaded()
        before, after = dict(self.current), dict(wanted)
        changed = {key: value for key, value in after.items() if value != before[key]}
        now = {key: value for key, value in changed.items() if key in RELOADABLE}
        unread = _reload_keys(keys, wanted.tls)
        if keys is None or wanted.tls is None or unread:  # TLS comes or goes with a restart alone
            now.pop("tls", None)
        self.current = self.current.model_copy(update=now)
        shown = {key: value for key, value in wanted.model_dump().items() if key in now}
        return Changes(shown, sorted(set(changed) - set(now)), unread)


def _reload_keys(keys: Keys | None, wanted: TlsSettings | None) -> str:
    """Read the certificate again; return why it stays as it was, if it could not be read."""
    if keys is None or wanted is None:
        return ""
    try:
        keys.load(wanted)
    except ConfigurationError as error:
        log.error("the certificate of TLS was not read again", reason=str(error))
        return str(error)
    return ""
