"""The catalog: SQLite rows of slabs, sessions, holders, tenants and grants, which survive the server.

Ids and generations come from blocks that are reserved in one write, and deletions wait for the next insertion, so
that a slab costs one transaction in its life. Not thread-safe; the loop's thread alone calls it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from farpool.protocol.errors import FarpoolError, PoolFull
from farpool.server.schema import APPLICATION_ID, DEFAULT_TENANT, QUARANTINE, SCHEMA, SCHEMA_VERSION, STOPPED, UPGRADES
from farpool.server.settings import ConfigurationError

__all__ = ["DEFAULT_TENANT", "Catalog", "Change", "HolderRow", "QuarantineRow", "SessionRow", "SlabRow"]

BLOCK: Final = 1024
"""Ids taken from the catalog at a time; a crash loses the rest of the block, which is harmless."""

LATE_AT_MOST: Final = 512
"""Deletions that wait for an insertion before they get a transaction of their own."""

INSERT_SLAB: Final = (
    "INSERT INTO slabs"
    " (id, generation, slot, nbytes, tenant, name, lease, ttl, owner, deadline, extent, created, atomics, draft_of)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_HOLDER: Final = "INSERT OR REPLACE INTO holders (slab, session, transport, mode) VALUES (?, ?, ?, ?)"
SET_META: Final = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
DELETE_SLAB: Final = "DELETE FROM slabs WHERE id = ?"

Change = tuple[str, tuple[object, ...]]
"""A statement and its parameters."""


@dataclass(frozen=True, slots=True)
class SlabRow:
    """One slab as the catalog keeps it."""

    id: int
    generation: int
    slot: int
    nbytes: int
    tenant: str
    name: str | None
    lease: str
    """``session``, ``persistent`` or ``ttl``."""
    ttl: float | None
    """Seconds, for the lease ``ttl``."""
    owner: int | None
    """Session that made it or took it over; None if that has ended."""
    deadline: float | None
    """CLOCK_BOOTTIME of this boot when a leased slab without an owner ends."""
    reclaiming: int = 0
    """1 once it was freed and only its holders keep its bytes charged."""
    atomics: str = "cpu"
    """Whose atomics its words belong to: ``cpu`` or ``rdma``."""
    extent: int | None = None
    """Where it begins on the arena's device; None where it has a file."""
    life: int | None = None
    """Generation that handles are bound to; None where it is that of the memory."""
    memory: int | None = None
    """Id of its memory in the arena; None where it is the slab's own."""
    commits: int = 0
    draft_of: int | None = None
    """The slab whose memory it is to replace, if it is a draft."""
    block: int | None = None
    """Bytes that each of ``checksums`` covers."""
    checksums: bytes | None = None
    exclusive: int | None = None
    """Session that alone may attach it."""

    @property
    def memory_id(self) -> int:
        """Id of its memory in the arena."""
        return self.id if self.memory is None else self.memory


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session that can be resumed after a restart."""

    id: int
    tenant: str
    secret_hash: bytes
    pid: int | None = None
    host: str = ""
    """Where its client is; ``""`` is this machine."""


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """An ended session that may still map extents of a device."""

    session: int
    pid: int | None
    """Its process, if that is on this machine."""
    begun: int | None
    """When the process began, in clock ticks of the boot: a number that comes again is another process."""
    boot_id: str
    host: str = ""
    """Where it came from, for the operator to know it by."""


@dataclass(frozen=True, slots=True)
class HolderRow:
    """A session that may have the slab mapped over a transport."""

    slab: int
    session: int
    transport: str
    mode: str


class Catalog:
    """The open database.

    Raises:
        ConfigurationError: damaged, not ours, or of a newer Farpool. Nothing is changed then.
    """

    def __init__(self, path: str, *, durable: bool) -> None:
        self.path = path
        self._late: list[Change] = []
        self._group: list[Change] | None = None
        self._blocks: dict[str, tuple[int, int]] = {}
        try:
            self._db = sqlite3.connect(path, isolation_level=None, cached_statements=64)
        except sqlite3.Error as error:
            raise ConfigurationError(f"the catalog {path} cannot be opened: {error}") from None
        try:
            self._open(durable)
        except sqlite3.Error as error:
            self._db.close()
            if isinstance(error, sqlite3.OperationalError):
                mend = (
                    "free space in the arena" if "full" in str(error) else "mend its file system, or name another arena"
                )
                raise ConfigurationError(f"the catalog {path} cannot be used: {error}; {mend}") from None
            raise ConfigurationError(
                f"the catalog {path} is damaged ({error}); move it away to start with an empty pool, or restore a copy"
            ) from None
        except BaseException:
            self._db.close()
            raise

    def _open(self, durable: bool) -> None:
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if tables and application != APPLICATION_ID:
            raise ConfigurationError(f"{self.path} is not a catalog of farpool; move it away, or name another arena")
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"the catalog {self.path} has schema {version}, this farpool knows {SCHEMA_VERSION} at "
                "most; run a newer farpool"
            )
        # Exclusive locking keeps the index of the WAL in our own memory: no shared file that a full tmpfs
        # could tear.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'NORMAL' if durable else 'OFF'}")
        (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        if not tables:
            marks = (f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={SCHEMA_VERSION}")
            statements = (*SCHEMA.split(";"), QUARANTINE, STOPPED, *marks)
            schema: list[Change] = [(statement, ()) for statement in statements]
            self._commit(
                [*schema, ("INSERT INTO tenants (name, created) VALUES (?, ?)", (DEFAULT_TENANT, time.time()))]
            )
            return
        for older in range(version, SCHEMA_VERSION):
            steps: list[Change] = [(statement, ()) for statement in UPGRADES[older]]
            self._commit([*steps, (f"PRAGMA user_version={older + 1}", ())])

    @contextlib.contextmanager
    def together(self) -> Generator[None]:
        """Make the changes that are asked for inside in one transaction at the end."""
        if self._group is not None:
            yield
            return
        self._group = []
        try:
            yield
        finally:
            group, self._group = self._group, None
            self._change(*group)

    def _forget(self, *changes: Change) -> None:
        # Made with the next insertion, in its transaction: after a crash a start finds the rows without memory.
        self._late.extend(changes)
        if len(self._late) >= LATE_AT_MOST:
            self._change()

    def _change(self, *changes: Change) -> None:
        # What gives space back must not fail for want of space: it is made with the next insertion then.
        if self._group is not None:
            self._group.extend(changes)
            return
        pending = [*self._late, *changes]
        self._late.clear()
        try:
            self._commit(pending)
        except sqlite3.OperationalError:
            self._late = pending

    def _commit(self, changes: Sequence[Change]) -> None:
        if len(changes) == 1:
            self._db.execute(*changes[0])
        elif changes:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for statement, parameters in changes:
                    self._db.execute(statement, parameters)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # Counters -------------------------------------------------------------------------------------------

    def next_number(self, counter: str) -> int:
        """Return the next number of *counter*, from 1 on, never one that was returned before."""
        number, end = self._blocks.get(counter, (0, 0))
        if number == end:
            number = number or self.meta_int(counter, 1)
            end = number + BLOCK
            self._change((SET_META, (counter, end)))
        self._blocks[counter] = (number + 1, end)
        return number

    def skip_past(self, counter: str, number: int) -> None:
        """Let :meth:`next_number` return none up to *number*; raise ``PoolFull`` if there is no room to note that."""
        if (self._blocks.get(counter, (0, 0))[0] or self.meta_int(counter, 1)) <= number:
            self.set_meta(counter, number + 1)
            self._blocks.pop(counter, None)

    def meta_int(self, key: str, default: int) -> int:
        """Return a number of the table meta."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return int(row[0]) if row else default

    def meta_text(self, key: str) -> str:
        """Return a text of the table meta, ``""`` if it has none."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else ""

    def set_meta(self, key: str, value: int | str) -> None:
        """Keep a value in the table meta."""
        with writing():
            self._db.execute(SET_META, (key, value))

    # Slabs and their holders --------------------------------------------------------------------------

    def insert_slab(self, row: SlabRow, holder: HolderRow | None = None) -> None:
        """Record a new slab, and who holds it, at once; raise ``PoolFull`` if a row has no room."""
        values = (row.id, row.generation, row.slot, row.nbytes, row.tenant, row.name, row.lease, row.ttl)
        changes: list[Change] = [
            *self._late,
            (INSERT_SLAB, (*values, row.owner, row.deadline, row.extent, time.time(), row.atomics, row.draft_of)),
        ]
        if holder is not None:
            changes.append(_insertion_of(holder))
        with writing():
            self._commit(changes)
        self._late.clear()

    def delete_slab(self, slab_id: int, *, held: bool) -> None:
        """Forget a slab, and its holders if *held*."""
        if held:
            self._forget(("DELETE FROM holders WHERE slab = ?", (slab_id,)), (DELETE_SLAB, (slab_id,)))
        else:
            self._forget((DELETE_SLAB, (slab_id,)))

    def mark_reclaiming(self, slab_id: int) -> None:
        """Record that the slab was freed, and that only its holders keep its bytes charged."""
        self._change(("UPDATE slabs SET reclaiming = 1, name = NULL, owner = NULL WHERE id = ?", (slab_id,)))

    def set_exclusive(self, slab_id: int, session_id: int | None) -> None:
        """Record which session alone may attach a slab."""
        self._change(("UPDATE slabs SET exclusive = ? WHERE id = ?", (session_id, slab_id)))

    def set_owner(self, slab_id: int, owner: int | None, deadline: float | None) -> None:
        """Record who renews a leased slab, or until when it lives without an owner."""
        self._change(("UPDATE slabs SET owner = ?, deadline = ? WHERE id = ?", (owner, deadline, slab_id)))

    def insert_holder(self, holder: HolderRow) -> None:
        """Record that a session may map a slab."""
        self._change(_insertion_of(holder))

    def delete_holder(self, slab_id: int, session_id: int, transport: str) -> None:
        """Record that a session has let go of a slab."""
        delete = "DELETE FROM holders WHERE slab = ? AND session = ? AND transport = ?"
        self._forget((delete, (slab_id, session_id, transport)))

    def slabs(self) -> list[SlabRow]:
        """Return every slab in the order of ids."""
        self._change()
        columns = ", ".join(field.name for field in fields(SlabRow))
        rows = self._db.execute(f"SELECT {columns} FROM slabs ORDER BY id")  # noqa: S608  a constant
        return [SlabRow(*row) for row in rows]

    def holders(self) -> list[HolderRow]:
        """Return every holder."""
        self._change()
        return [HolderRow(*row) for row in self._db.execute("SELECT slab, session, transport, mode FROM holders")]

    # Sessions -----------------------------------------------------------------------------------------

    def insert_session(self, row: SessionRow) -> None:
        """Record a session so that it can be resumed."""
        values = (row.id, row.tenant, row.secret_hash, row.pid, time.time(), row.host)
        self._change(("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", values))

    def delete_session(self, session_id: int) -> None:
        """Forget a session and all that it holds."""
        self._change(
            ("DELETE FROM holders WHERE session = ?", (session_id,)),
            ("DELETE FROM sessions WHERE id = ?", (session_id,)),
        )

    def quarantine_session(self, row: QuarantineRow) -> None:
        """Forget a session, but not what it holds."""
        values = (row.session, row.pid, row.begun, row.boot_id, row.host, time.time())
        self._change(
            ("INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?, ?)", values),
            ("DELETE FROM sessions WHERE id = ?", (row.session,)),
        )

    def release_session(self, session_id: int) -> None:
        """Forget a session of the quarantine and all that it holds."""
        self._forget(
            ("DELETE FROM holders WHERE session = ?", (session_id,)),
            ("DELETE FROM quarantine WHERE session = ?", (session_id,)),
        )

    def quarantine(self) -> list[QuarantineRow]:
        """Return the ended sessions that may still map extents."""
        rows = self._db.execute("SELECT session, pid, begun, boot_id, host FROM quarantine")
        return [QuarantineRow(*row) for row in rows]

    def sessions(self) -> list[SessionRow]:
        """Return the sessions that were alive."""
        self._change()
        rows = self._db.execute("SELECT id, tenant, secret_hash, pid, host FROM sessions")
        return [SessionRow(*row) for row in rows]

    # What other modules keep here ---------------------------------------------------------------------

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with all changes made."""
        self._change()
        return self._db.execute(query, parameters).fetchall()

    def forget(self, *changes: Change) -> None:
        """Make deletions together with the next insertion."""
        self._forget(*changes)

    def write(self, *changes: Change) -> None:
        """Make changes now, all or none; raise ``PoolFull`` if there is no room for them."""
        with writing():
            self._commit([*self._late, *changes])
        self._late.clear()

    def close(self) -> None:
        """Close the database; its rows stay. May be called twice."""
        unused: list[Change] = [(SET_META, (counter, number)) for counter, (number, _) in self._blocks.items()]
        with contextlib.suppress(sqlite3.OperationalError):
            self._commit([*self._late, *unused])
        self._late.clear()
        self._blocks.clear()
        self._db.close()


def _insertion_of(holder: HolderRow) -> Change:
    return (INSERT_HOLDER, (holder.slab, holder.session, holder.transport, holder.mode))


@contextlib.contextmanager
def writing() -> Generator[None]:
    """Turn SQLite's errors into ours: no room is ``PoolFull``."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise PoolFull(
                "the arena's file system has no room for the catalog; free slabs, or give it more memory",
                file_system_free=0,
            ) from error
        raise FarpoolError(f"the catalog cannot be written: {error}") from error
