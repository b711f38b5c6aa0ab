"""What a server leaves to its successor: listening sockets, the arena's lock, and its sessions in the catalog.

The successor's side is :mod:`farpool.server.takeover`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from farpool.protocol.errors import InvalidArgument, ProtocolError
from farpool.protocol.takeover_messages import TAKEOVER_VERSION, Inheritance, Takeover
from farpool.server.schema import SCHEMA_VERSION

__all__ = ["Handover"]


class Handover:
    """The end of a server that another process takes over from. The loop's thread alone uses it."""

    def __init__(
        self,
        arena: str,
        state_dir: str,
        descriptors: Callable[[], Mapping[str, int]],
        exposure: Callable[[], dict[str, str]],
        begin: Callable[[], None],
    ) -> None:
        self._arena = arena
        self._state_dir = state_dir
        self._descriptors = descriptors
        self._exposure = exposure
        self._begin = begin
        self._offered_to = 0
        self._line = -1

    @property
    def begun(self) -> bool:
        """Tell whether a successor has what it needs, and waits for our end."""
        return self._line >= 0

    def offer(self, session_id: int, request: Takeover) -> tuple[Inheritance, list[int]]:
        """Return what to tell the successor that asks in *session_id*, and the descriptors to pass with it."""
        if request.version != TAKEOVER_VERSION or request.catalog < SCHEMA_VERSION:
            raise ProtocolError(
                f"the running server hands over in version {TAKEOVER_VERSION} with a catalog of schema "
                f"{SCHEMA_VERSION}, this farpool takes over in version {request.version} and knows schema "
                f"{request.catalog}; stop that server, or use the release that it runs or a newer one"
            )
        ours, theirs = os.path.realpath(self._arena), request.arena
        if Path(ours).is_dir() is False:
            ours, theirs = f"{ours} ({os.path.realpath(self._state_dir)})", f"{theirs} ({request.state_dir})"
        if ours != theirs:
            raise InvalidArgument(
                f"the running server has the arena {ours}, not {theirs}; name its arena with --arena, or stop it"
            )
        descriptors = self._descriptors()
        self._offered_to = session_id
        told = Inheritance(descriptors=list(descriptors), pid=os.getpid(), exposure=self._exposure())
        return told, list(descriptors.values())

    def let_go(self, session_id: int, line: int) -> None:
        """Begin the end; *line* is a descriptor whose closing tells the successor that it has come."""
        if self._offered_to != session_id or self.begun:
            os.close(line)
            raise ProtocolError("let_go comes after takeover, over the same connection, once")
        self._line = line
        self._begin()

    def close(self) -> None:
        """Tell the successor that nothing of this server is left but its process. May be called twice."""
        if self.begun:
            os.close(self._line)
            self._line = -1
