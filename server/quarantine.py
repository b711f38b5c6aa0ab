"""Ended sessions that may still have slabs mapped: their bytes are nobody else's before the process is known dead.

A process of this machine is watched (pidfd). One of another host is only ever released by the operator, who knows that
it is gone: a host that does not answer may store to its mapping at any time. Not thread-safe.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from farpool.protocol.errors import InvalidArgument, PermissionDenied
from farpool.server.catalog import Catalog, QuarantineRow
from farpool.server.deadlines import boot_id
from farpool.server.peers import ProcessWatch

__all__ = ["LOCAL", "Quarantine", "process_begun"]

log: structlog.stdlib.BoundLogger = structlog.get_logger("farpool.quarantine")

LOCAL: Final = "local"
"""How an operator names this machine."""

NAMED: Final = 20
"""Hosts or processes in one message at most."""


def process_begun(pid: int) -> int | None:
    """Return when a process of this machine began, in clock ticks of the boot; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    # Fields 3 (state), 20 (num_threads) and 22 (starttime) of proc_pid_stat(5). A zombie maps nothing any more, unless
    # only its first thread has ended.
    gone = fields[0] == "X" or (fields[0] == "Z" and int(fields[17]) <= 1)
    return None if gone else int(fields[19])


class Quarantine:
    """The sessions by number. ``released`` is called once for each that holds nothing any more."""

    def __init__(self, catalog: Catalog, released: Callable[[int], None]) -> None:
        self._catalog = catalog
        self._released = released
        self._rows: dict[int, QuarantineRow] = {}
        self._watches: dict[int, ProcessWatch] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def all(self) -> list[QuarantineRow]:
        """Return the sessions that are held, in the order in which they came."""
        return list(self._rows.values())

    def hosts(self) -> dict[str, list[QuarantineRow]]:
        """Return the sessions that are held by the name of their host."""
        hosts: dict[str, list[QuarantineRow]] = defaultdict(list)
        for row in self._rows.values():
            hosts[row.host or LOCAL].append(row)
        return dict(hosts)

    def begin(self, session_id: int, pid: int | None, host: str) -> None:
        """Keep what an ended session holds until its process is gone."""
        begun = None if pid is None else process_begun(pid)
        row = QuarantineRow(session_id, pid, begun, boot_id(), host)
        self._catalog.quarantine_session(row)
        (log.info if pid is not None else log.warning)("memory quarantined", session=session_id, pid=pid, host=host)
        self.restore(row)

    def restore(self, row: QuarantineRow) -> None:
        """Go on with a session that the catalog knows; released in the loop's next turn if it is proved dead."""
        self._rows[row.session] = row
        if row.pid is None:
            return
        loop = asyncio.get_running_loop()
        if not _lives(row):
            loop.call_soon(self.release, row.session)
            return
        self._watches[row.session] = ProcessWatch(loop, row.pid, lambda: self.release(row.session))
        if not _lives(row):  # it ended before it was watched
            loop.call_soon(self.release, row.session)

    def release_host(self, host: str) -> list[int]:
        """Take the operator's word that nothing on *host* maps what its sessions had; return these.

        Raises:
            InvalidArgument: the host has none here.
            PermissionDenied: all are processes of this machine, which are seen to live.
        """
        hosts = self.hosts()
        if host not in hosts:
            others = ", ".join(sorted(hosts)[:NAMED]) or "none does"
            raise InvalidArgument(f"no ended session of host {host[:80]!r} holds memory; those that do: {others}")
        sessions = [row.session for row in hosts[host] if row.pid is None]
        if not sessions:
            pids = " ".join(sorted({str(row.pid) for row in hosts[host]})[:NAMED])
            raise PermissionDenied(f"what has the memory mapped on this host is alive; end it with: kill {pids}")
        for session_id in sessions:
            self.release(session_id)
        log.warning("memory released on the operator's word", host=host, sessions=sessions)
        return sessions

    def release(self, session_id: int) -> None:
        """Take the session's word that it holds nothing: its process is gone, or the operator says so."""
        if self._rows.pop(session_id, None) is None:
            return
        if (watch := self._watches.pop(session_id, None)) is not None:
            watch.close()
        self._released(session_id)
        self._catalog.release_session(session_id)
        log.info("memory released", session=session_id)

    def close(self) -> None:
        """Stop watching; the catalog remembers. May be called twice."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()


def _lives(row: QuarantineRow) -> bool:
    assert row.pid is not None
    return row.boot_id == boot_id() and row.begun is not None and process_begun(row.pid) == row.begun
