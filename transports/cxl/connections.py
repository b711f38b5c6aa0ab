"""The open connections of cxl's descriptor socket: whose they are, how many there may be, and who goes."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from farpool.transports.connection_limits import ConnectionLimits
from farpool.transports.contract import ServedSession
from farpool.transports.cxl import descriptors

__all__ = ["MAX_STRANGERS", "Connections"]

MAX_STRANGERS: Final = 256
"""Of more that have not shown a session's secret the oldest goes; a client of ours does so at once."""


class Connections:
    """Every open connection of one server. The loop's thread alone uses it."""

    def __init__(self, limits: ConnectionLimits, several_tenants: Callable[[], bool]) -> None:
        self.limits = limits
        self._several_tenants = several_tenants
        self._strangers: dict[socket.socket, None] = {}
        self._known: dict[socket.socket, ServedSession] = {}
        self._of_session: Counter[int] = Counter()
        self._of_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def add(self, connection: socket.socket) -> socket.socket | None:
        """Take a stranger in; return the one that must go for it, if there are too many."""
        self._strangers[connection] = None
        return next(iter(self._strangers)) if len(self._strangers) > MAX_STRANGERS else None

    def is_stranger(self, connection: socket.socket) -> bool:
        """Tell whether it is open, and has not shown a session's secret."""
        return connection in self._strangers

    def know(self, connection: socket.socket, session: ServedSession) -> int:
        """Note whose the connection is; return ``OK``, or why it must go: the status and number of its answer."""
        known = self._known.get(connection)
        if known is not None and known.id == session.id:
            return descriptors.OK
        if known is not None:
            self.remove(connection)
        if self._of_session[session.id] >= self.limits.session:
            return descriptors.with_number(descriptors.SESSION_FULL, self.limits.session)
        if len(self._known) >= self.limits.server:
            return descriptors.with_number(descriptors.SERVER_FULL, self.limits.server)
        of_tenant = self._of_tenant[session.tenant]
        # As many as are left for others: so no tenant shuts another out, nor do several that act together.
        if of_tenant and of_tenant >= self.limits.server - len(self._known) - 1 and self._several_tenants():
            return descriptors.with_number(descriptors.TENANT_FULL, of_tenant)
        self._strangers.pop(connection, None)
        self._known[connection] = session
        self._of_session[session.id] += 1
        self._of_tenant[session.tenant] += 1
        return descriptors.OK

    def remove(self, connection: socket.socket) -> bool:
        """Forget a connection; return whether it was open."""
        session = self._known.pop(connection, None)
        if session is None:
            return self._strangers.pop(connection, connection) is None
        self._of_tenant[session.tenant] -= 1
        self._of_session[session.id] -= 1
        if not self._of_session[session.id]:
            del self._of_session[session.id]
        return True

    def all(self) -> list[socket.socket]:
        """Return those that are open."""
        return [*self._strangers, *self._known]

    def of_session(self, session_id: int) -> list[socket.socket]:
        """Return those of one session."""
        return [connection for connection, session in self._known.items() if session.id == session_id]
