"""The tables in the database of a file sink: a few for each set of rows.

SQLite renames tables in a transaction, and a reader sees all of it or nothing, so a change of model
is a change of names.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from embedlib.errors import SinkError
from embedlib.indexing.sinks.protocol import Target

DATABASE: Final = "rows.sqlite"
"""The file, in the folder beside the exported one."""
FOUND: Final = ""
"""In front of the names of the tables that searches find."""
BESIDE: Final = "new_"
"""Of another model, while they are loaded."""
OLD: Final = "old_"
"""Found before the last switch."""
_NAMES = ("load", "row", "position")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS {}load (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS {}row (
    number INTEGER PRIMARY KEY, id BLOB UNIQUE NOT NULL, source_id TEXT NOT NULL,
    chunk INTEGER NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL, digest BLOB NOT NULL,
    vector BLOB NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS {}position (line TEXT NOT NULL)",
)


def open_database(file: Path) -> sqlite3.Connection:
    """Open a database, or create it."""
    path, folder = file.absolute(), file.parent
    # SQLite creates files of its own unless it is told that the database cannot change, which is
    # true if the folder is read-only and no writer's log exists.
    is_fixed = not os.access(folder, os.W_OK) and not os.path.exists(f"{path}-wal")
    # One thread at a time calls, but not always the same.
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path))}{'?immutable=1' if is_fixed else ''}",
        uri=True,
        check_same_thread=False,
        isolation_level=None,
    )


def create_tables(database: sqlite3.Connection, rows: str) -> None:
    """Create what is missing of a set of rows; call it in a transaction."""
    for statement in _SCHEMA:
        database.execute(statement.format(rows))


def read_target(database: sqlite3.Connection, rows: str) -> Target | None:
    """Return the target that `begin` stored for a set of rows; None: nothing was loaded."""
    if not _exists(database, f"{rows}load"):
        return None  # or killed before the tables were created
    found = database.execute(f"SELECT key, value FROM {rows}load WHERE key != 'written'")
    values = {key: json.loads(value) for key, value in found}
    return Target(**values) if values else None


def read_position(database: sqlite3.Connection, rows: str) -> str | None:
    """Return how far a source was read into a set of rows; None: not told."""
    if not _exists(database, f"{rows}position"):
        return None
    found = database.execute(f"SELECT line FROM {rows}position").fetchone()
    return None if found is None else str(found[0])


def write_position(database: sqlite3.Connection, rows: str, position: str | None) -> None:
    """Replace how far a source was read; call it in a transaction."""
    database.execute(f"DELETE FROM {rows}position")
    if position is not None:
        database.execute(f"INSERT INTO {rows}position VALUES (?)", (position,))


def switch_tables(database: sqlite3.Connection, name: str) -> None:
    """Let the rows beside take the place of those that are found; call it in a transaction.

    Raises:
        SinkError: old rows are there.
    """
    if _exists(database, f"{OLD}load"):
        raise SinkError(f"{name} keeps old rows already; remove them: embedlib drop-old")
    for before, after in ((FOUND, OLD), (BESIDE, FOUND)):
        if _exists(database, f"{before}load"):
            # Earlier versions made no table for the position.
            for table in [name for name in _NAMES if _exists(database, f"{before}{name}")]:
                database.execute(f"ALTER TABLE {before}{table} RENAME TO {after}{table}")


def drop_old_tables(database: sqlite3.Connection) -> None:
    """Drop the old rows; call it in a transaction."""
    for table in _NAMES:
        database.execute(f"DROP TABLE IF EXISTS {OLD}{table}")


@contextmanager
def one_snapshot(database: sqlite3.Connection) -> Iterator[None]:
    """Let all reads of the block see the same state, whatever others write meanwhile."""
    with database:  # ends the transaction
        database.execute("BEGIN")
        yield


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commit what the block writes, all of it or nothing."""
    with database:  # commits, or takes back
        database.execute("BEGIN IMMEDIATE")
        yield database


def _exists(database: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return database.execute(query, (table,)).fetchone() is not None
