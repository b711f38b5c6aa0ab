"""The catalog: what survives, what is refused, and that want of room loses nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farpool.protocol.errors import PoolFull
from farpool.server.catalog import BLOCK, Catalog, HolderRow, SessionRow, SlabRow
from farpool.server.settings import ConfigurationError

Opener = Callable[[], Catalog]


@pytest.fixture
def path(memory_folder: Path) -> Path:
    return memory_folder / "catalog.sqlite"


@pytest.fixture
def opened(path: Path) -> Iterator[Opener]:
    made: list[Catalog] = []

    def open_catalog() -> Catalog:
        made.append(Catalog(str(path), durable=False))
        return made[-1]

    yield open_catalog
    for catalog in made:
        catalog.close()


def row(number: int, **changes: object) -> SlabRow:
    values: dict[str, object] = {
        "id": number,
        "generation": number + 100,
        "slot": number,
        "nbytes": 4096,
        "tenant": "default",
        "name": None,
        "lease": "persistent",
        "ttl": None,
        "owner": None,
        "deadline": None,
    }
    return SlabRow(**(values | changes))  # type: ignore[arg-type]


def test_rows_survive(opened: Opener) -> None:
    catalog = opened()
    rows = [row(1, name="ä"), row(2, lease="ttl", ttl=1.5, owner=9), row(3)]
    for each in rows:
        catalog.insert_slab(each)
    catalog.insert_session(SessionRow(9, "default", b"h" * 32, 4711))
    catalog.insert_holder(HolderRow(1, 9, "cxl", "rw"))
    catalog.set_owner(2, None, 77.5)
    catalog.set_meta("epoch", 3)
    catalog.delete_slab(3, held=False)
    catalog.close()
    catalog = opened()
    assert catalog.slabs() == [rows[0], row(2, lease="ttl", ttl=1.5, deadline=77.5)]
    assert catalog.sessions() == [SessionRow(9, "default", b"h" * 32, 4711)]
    assert catalog.holders() == [HolderRow(1, 9, "cxl", "rw")]
    assert catalog.meta_int("epoch", 0) == 3
    catalog.delete_session(9)
    assert catalog.sessions() == []
    assert catalog.holders() == []


def test_a_reclaiming_row_loses_name_and_owner(opened: Opener) -> None:
    catalog = opened()
    catalog.insert_slab(row(1, name="n", owner=3, lease="session"), HolderRow(1, 3, "cxl", "rw"))
    catalog.mark_reclaiming(1)
    assert catalog.slabs() == [row(1, lease="session", reclaiming=1)]
    catalog.delete_slab(1, held=True)
    catalog.insert_slab(row(2))
    assert catalog.slabs() == [row(2)]
    assert catalog.holders() == []


def test_numbers_are_never_given_twice(opened: Opener, path: Path) -> None:
    catalog = opened()
    assert [catalog.next_number("a") for _ in range(3)] == [1, 2, 3]
    assert catalog.next_number("b") == 1
    crashed = path.with_name("crashed.sqlite")
    for suffix in ("", "-wal"):
        Path(f"{crashed}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    catalog.close()
    assert opened().next_number("a") == 4
    after_crash = Catalog(str(crashed), durable=False)
    assert after_crash.next_number("a") == BLOCK + 1
    after_crash.close()


def test_a_block_is_followed_by_the_next(opened: Opener) -> None:
    catalog = opened()
    assert [catalog.next_number("a") for _ in range(BLOCK * 2 + 1)] == list(range(1, BLOCK * 2 + 2))


def test_what_was_deleted_and_comes_back_stays(opened: Opener) -> None:
    catalog = opened()
    catalog.insert_slab(row(1), HolderRow(1, 3, "cxl", "rw"))
    catalog.delete_holder(1, 3, "cxl")
    catalog.insert_holder(HolderRow(1, 3, "cxl", "r"))
    catalog.insert_slab(row(2))
    assert catalog.holders() == [HolderRow(1, 3, "cxl", "r")]


def test_changes_together_are_one(opened: Opener, path: Path) -> None:
    catalog = opened()
    with catalog.together():
        catalog.insert_session(SessionRow(1, "default", b"h"))
        with catalog.together():
            catalog.insert_session(SessionRow(2, "default", b"h"))
        assert catalog.sessions() == []
    assert [session.id for session in catalog.sessions()] == [1, 2]


def test_want_of_room_refuses_a_slab_and_postpones_the_rest(
    opened: Opener, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opened()
    catalog.insert_slab(row(1))
    full = FullConnection(vars(catalog)["_db"])
    monkeypatch.setattr(catalog, "_db", full)
    with pytest.raises(PoolFull, match="no room for the catalog"):
        catalog.insert_slab(row(2))
    catalog.insert_session(SessionRow(5, "default", b"h"))
    catalog.delete_slab(1, held=False)
    assert catalog.next_number("next_slab") == 1
    full.full = False
    catalog.insert_slab(row(3))
    assert [slab.id for slab in catalog.slabs()] == [3]
    assert [session.id for session in catalog.sessions()] == [5]
    assert catalog.meta_int("next_slab", 0) == 1 + BLOCK


class FullConnection:
    """A database without room, until it is told otherwise."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.full = True
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def execute(self, statement: str, parameters: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self.full and not statement.startswith(("SELECT", "BEGIN", "ROLLBACK")):
            raise sqlite3.OperationalError("database or disk is full")
        return self._database.execute(statement, parameters)


def test_damage_is_refused_and_nothing_is_deleted(opened: Opener, path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at " * 100)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=r"is damaged.*move it away"):
        opened()
    assert path.read_bytes() == before


def test_damage_inside_is_refused(opened: Opener, path: Path) -> None:
    catalog = opened()
    for number in range(1, 2000):
        catalog.insert_slab(row(number, name=f"name {number}" * 10))
    catalog.close()
    damaged = bytearray(path.read_bytes())
    for page in range(4096 * 4, len(damaged), 4096):
        damaged[page : page + 512] = b"\xff" * 512
    path.write_bytes(damaged)
    with pytest.raises(ConfigurationError, match="is damaged"):
        opened()


def test_a_foreign_database_is_refused(opened: Opener, path: Path) -> None:
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE theirs (a)")
    foreign.commit()
    foreign.close()
    with pytest.raises(ConfigurationError, match="not a catalog of farpool"):
        opened()


def test_a_newer_schema_is_refused(opened: Opener, path: Path) -> None:
    opened().close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(ConfigurationError, match=r"schema 99.*newer farpool"):
        opened()


def test_a_catalog_of_an_older_release_is_brought_forward(opened: Opener, path: Path) -> None:
    opened().close()
    older = sqlite3.connect(path)
    older.executescript(
        "DROP TABLE stopped;"
        "DROP TABLE tenants; CREATE TABLE tenants (name TEXT PRIMARY KEY, created REAL NOT NULL) WITHOUT ROWID;"
        "INSERT INTO tenants VALUES ('default', 0.0);"
        "DROP TABLE grants; CREATE TABLE grants (slab INTEGER NOT NULL, tenant TEXT NOT NULL, mode TEXT NOT NULL,"
        " created REAL NOT NULL, PRIMARY KEY (slab, tenant)) WITHOUT ROWID;"
        "DROP TABLE slabs; CREATE TABLE slabs (id INTEGER PRIMARY KEY, generation INTEGER NOT NULL, slot INTEGER NOT"
        " NULL, nbytes INTEGER NOT NULL, tenant TEXT NOT NULL REFERENCES tenants (name), name TEXT, lease TEXT NOT"
        " NULL, ttl REAL, owner INTEGER, deadline REAL, reclaiming INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL,"
        " extent INTEGER,"
        " atomics TEXT NOT NULL DEFAULT 'cpu');"
        "DROP TABLE sessions; CREATE TABLE sessions (id INTEGER PRIMARY KEY, tenant TEXT NOT NULL,"
        " secret_hash BLOB NOT NULL, pid INTEGER, created REAL NOT NULL);"
        "INSERT INTO sessions VALUES (7, 'default', x'00', 4711, 0.0); PRAGMA user_version = 2;"
    )
    older.close()
    catalog = opened()
    catalog.insert_session(SessionRow(8, "default", b"h", None, "10.0.0.2"))
    assert catalog.sessions() == [
        SessionRow(7, "default", b"\0", 4711),
        SessionRow(8, "default", b"h", None, "10.0.0.2"),
    ]
