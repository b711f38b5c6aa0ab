"""The catalog's tables, and how a catalog of an older Farpool gets them."""

from __future__ import annotations

from typing import Final

from farpool.protocol.tenant_messages import DEFAULT_TENANT

__all__ = ["APPLICATION_ID", "DEFAULT_TENANT", "QUARANTINE", "SCHEMA", "SCHEMA_VERSION", "STOPPED", "UPGRADES"]

SCHEMA_VERSION: Final = 4
APPLICATION_ID: Final = 0x4661_7270
"""``Farp`` in the header of the SQLite file, so that a foreign database is told apart."""

QUARANTINE: Final = """
CREATE TABLE quarantine (
    session INTEGER PRIMARY KEY, pid INTEGER, begun INTEGER, boot_id TEXT NOT NULL, host TEXT NOT NULL,
    created REAL NOT NULL
)"""

STOPPED: Final = """
CREATE TABLE stopped (session INTEGER PRIMARY KEY, secret_hash BLOB NOT NULL, epoch INTEGER NOT NULL)"""

SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tenants (
    name TEXT PRIMARY KEY, created REAL NOT NULL, verifier BLOB, max_bytes INTEGER, max_slabs INTEGER,
    max_sessions INTEGER, max_rate REAL
) WITHOUT ROWID;
CREATE TABLE slabs (
    id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slot INTEGER NOT NULL, nbytes INTEGER NOT
    NULL, tenant TEXT NOT NULL REFERENCES tenants (name), name TEXT, lease TEXT NOT NULL, ttl REAL, owner
    INTEGER, deadline REAL, reclaiming INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL, extent INTEGER,
    atomics TEXT NOT NULL DEFAULT 'cpu', life INTEGER, memory INTEGER, commits INTEGER NOT NULL DEFAULT 0,
    draft_of INTEGER, block INTEGER, checksums BLOB, exclusive INTEGER
);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants (name), secret_hash BLOB NOT NULL,
    pid INTEGER, created REAL NOT NULL, host TEXT NOT NULL DEFAULT ''
);
CREATE TABLE holders (
    slab INTEGER NOT NULL, session INTEGER NOT NULL, transport TEXT NOT NULL, mode TEXT NOT NULL,
    PRIMARY KEY (slab, session, transport)
) WITHOUT ROWID;
CREATE TABLE grants (
    slab INTEGER NOT NULL, tenant TEXT NOT NULL, mode TEXT NOT NULL, created REAL NOT NULL, expires REAL,
    PRIMARY KEY (slab, tenant)
) WITHOUT ROWID;
"""
"""Of a tenant: ``verifier`` is what its token is checked with, NULL if it has none; a limit that is NULL is none.

Of a slab: ``generation`` is its memory's, and ``life`` the slab's own once a commit has replaced its memory;
``memory`` is the id of that memory in the arena, NULL where it is the slab's own; ``draft_of`` is the slab that a draft
is to replace the memory of; ``checksums`` are the crc32c of each ``block`` bytes; ``exclusive`` is the session that
alone may attach it.

Of ``stopped``: a session that ended because the server of that ``epoch`` stopped in order.
"""

UPGRADES: Final = {
    1: (
        "ALTER TABLE slabs ADD COLUMN extent INTEGER",
        "ALTER TABLE slabs ADD COLUMN atomics TEXT NOT NULL DEFAULT 'cpu'",
        QUARANTINE,
    ),
    2: (
        "ALTER TABLE tenants ADD COLUMN verifier BLOB",
        "ALTER TABLE tenants ADD COLUMN max_bytes INTEGER",
        "ALTER TABLE tenants ADD COLUMN max_slabs INTEGER",
        "ALTER TABLE tenants ADD COLUMN max_sessions INTEGER",
        "ALTER TABLE tenants ADD COLUMN max_rate REAL",
        "ALTER TABLE slabs ADD COLUMN life INTEGER",
        "ALTER TABLE slabs ADD COLUMN memory INTEGER",
        "ALTER TABLE slabs ADD COLUMN commits INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE slabs ADD COLUMN draft_of INTEGER",
        "ALTER TABLE slabs ADD COLUMN block INTEGER",
        "ALTER TABLE slabs ADD COLUMN checksums BLOB",
        "ALTER TABLE slabs ADD COLUMN exclusive INTEGER",
        "ALTER TABLE grants ADD COLUMN expires REAL",
        "ALTER TABLE sessions ADD COLUMN host TEXT NOT NULL DEFAULT ''",
    ),
    3: (STOPPED,),
}
"""By version, what makes the next version's schema of it."""
