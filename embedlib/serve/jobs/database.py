"""The database of jobs: its tables, rows, and pages of lists.

Source: SQLite, "Write-Ahead Logging" and "PRAGMA synchronous": in WAL mode a commit survives a
loss of power only with `synchronous=FULL`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from embedlib.errors import ConfigError, first_line
from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.folder import is_full


class Row(Protocol):
    """A row of a table, which is a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def id(self) -> str:
        """By which it is found."""


R = TypeVar("R", bound=Row)

MAX_LOG_BYTES = 64 << 20
"""Of the write-ahead log, once its content is in the database."""
_TABLES = """
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, num_bytes INTEGER NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX files_expire ON files (expires_at);
CREATE TABLE batches (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, status TEXT NOT NULL,
    endpoint TEXT NOT NULL, input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL,
    metadata TEXT, output_seconds INTEGER NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, in_progress_at INTEGER, finalizing_at INTEGER,
    completed_at INTEGER, failed_at INTEGER, expired_at INTEGER, cancelling_at INTEGER,
    cancelled_at INTEGER, ended_at INTEGER, output_file_id TEXT NOT NULL,
    error_file_id TEXT NOT NULL, errors TEXT, model TEXT,
    num_total INTEGER NOT NULL DEFAULT 0, num_completed INTEGER NOT NULL DEFAULT 0,
    num_failed INTEGER NOT NULL DEFAULT 0, num_tokens INTEGER NOT NULL DEFAULT 0,
    num_lines INTEGER NOT NULL DEFAULT 0, input_offset INTEGER NOT NULL DEFAULT 0,
    output_bytes INTEGER NOT NULL DEFAULT 0, error_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batches_open ON batches (seq) WHERE ended_at IS NULL;
CREATE TABLE requests (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, status TEXT NOT NULL,
    path TEXT NOT NULL, body BLOB, num_bytes INTEGER NOT NULL, priority INTEGER NOT NULL,
    created_at REAL NOT NULL, status_at REAL NOT NULL, queue_until REAL NOT NULL,
    not_before REAL NOT NULL, num_attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL, delay_ms INTEGER NOT NULL, max_delay_ms INTEGER NOT NULL,
    model TEXT NOT NULL DEFAULT '', http_status INTEGER, result BLOB,
    error_code TEXT, error_message TEXT, webhook TEXT, webhook_status TEXT NOT NULL,
    webhook_attempts INTEGER NOT NULL DEFAULT 0, webhook_at REAL, ended_at REAL
);
CREATE INDEX requests_queue ON requests (priority, seq) WHERE status = 'QUEUED';
CREATE INDEX requests_webhooks ON requests (webhook_at) WHERE webhook_at IS NOT NULL;
CREATE INDEX requests_ended ON requests (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX requests_status ON requests (status);
"""
_OWNERS = """
ALTER TABLE files ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE batches ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE requests ADD COLUMN owner TEXT NOT NULL DEFAULT '';
CREATE INDEX requests_owner ON requests (owner, status);
"""
_TRACES = """
ALTER TABLE batches ADD COLUMN traceparent TEXT NOT NULL DEFAULT '';
ALTER TABLE requests ADD COLUMN traceparent TEXT NOT NULL DEFAULT '';
"""
_EXPIRY = """
CREATE INDEX requests_expire ON requests (queue_until) WHERE status = 'QUEUED';
"""
HOST: Final = "substr(webhook, 1, instr(substr(webhook, 9) || '/', '/') + 7)"
"""Scheme, host and port of a webhook: what is in front of the path, which begins at 9 or later."""
_HOSTS = f"""
DROP INDEX requests_webhooks;
CREATE INDEX requests_hosts ON requests ({HOST}, webhook_at) WHERE webhook_at IS NOT NULL;
"""
_STEPS: Final = (_TABLES, _OWNERS, _TRACES, _EXPIRY, _HOSTS)
"""Each makes the next format of the one before; a new database takes them all."""
VERSION: Final = len(_STEPS)


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database; make its tables, or the columns that an older one lacks.

    One thread at a time may use it.

    Raises:
        ConfigError: it is damaged, of a newer version, or cannot be written to.
    """
    try:  # for this user alone, in whatever folder it is: it holds texts, results and webhooks
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used: {error.strerror}; give another --data-dir"
        ) from None
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={MAX_LOG_BYTES}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise ConfigError(
                f"{path} has the format {version}, this embedlib reads {VERSION}; give another "
                "--data-dir, or install the embedlib that wrote it"
            )
        for number, step in enumerate(_STEPS[version:], version + 1):
            connection.executescript(f"BEGIN;{step}PRAGMA user_version={number};COMMIT;")
    except sqlite3.Error as error:
        connection.close()
        remedy = "give it room" if is_full(error) else "give another --data-dir"
        raise ConfigError(f"{path} cannot be used: {first_line(error)}; {remedy}") from None
    except ConfigError:
        connection.close()
        raise
    return connection


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> None:
    """Insert a row; names of tables and columns are ours, values are bound."""
    names, marks = ", ".join(values), ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*values.values()])


@dataclass(frozen=True)
class Page(Generic[R]):
    """Some rows of a list."""

    rows: Sequence[R]
    has_more: bool


class Store(Generic[R]):
    """The rows of a table by id; called on the store's thread, inside its transactions.

    A method with an owner raises `HTTPError` for an id that is not there, or not for this owner: it
    sees its own rows and those that nobody owns, which were made without a key. "" sees all.
    """

    def __init__(
        self, connection: sqlite3.Connection, table: str, row: type[R], noun: str, remedy: str
    ) -> None:
        """Keep rows in a database.

        Args:
            connection: of the database.
            table: whose columns are the fields of the rows.
            row: the type of the rows.
            noun: what a row is, for messages.
            remedy: what to do about an id that is not there.
        """
        self._connection = connection
        self._table = table
        self._row: Callable[..., R] = row
        self._columns = ", ".join(item.name for item in fields(row))
        self._noun, self._remedy = noun, remedy

    def insert(self, row: R, **others: Any) -> None:
        """Insert a row, with columns that are no fields of it."""
        insert(self._connection, self._table, {**asdict(row), **others})

    def update(self, row_id: str, **values: Any) -> None:
        """Set columns of a row."""
        names = ", ".join(f"{name} = ?" for name in values)
        self._connection.execute(
            f"UPDATE {self._table} SET {names} WHERE id = ?", [*values.values(), row_id]
        )

    def get(self, row_id: str, owner: str = "") -> R:
        """Return a row that an owner sees."""
        condition, values = _seen_by(owner)
        found = self._connection.execute(
            f"SELECT {self._columns} FROM {self._table} WHERE id = ? AND {condition}",
            [row_id, *values],
        ).fetchone()
        if found is None:
            raise HTTPError(404, f"no {self._noun} {row_id!r:.80} here; {self._remedy}", "missing")
        return self._row(**found)

    def page(
        self,
        owner: str,
        *,
        after: str | None,
        limit: int,
        is_descending: bool,
        **equal: str | None,
    ) -> Page[R]:
        """Return a page of the rows that an owner sees.

        Args:
            owner: sees them.
            after: the id behind which the page begins; None: the first page.
            limit: rows at most.
            is_descending: the newest first.
            **equal: values that columns must have; None or empty: any.

        Raises:
            HTTPError: there is no row `after`.
        """
        order, sign = ("DESC", "<") if is_descending else ("ASC", ">")
        condition, values = _seen_by(owner)
        conditions: list[str] = [condition]
        bound: list[object] = [*values]
        for name, value in equal.items():
            if value:
                conditions.append(f"{name} = ?")
                bound.append(value)
        if after is not None:
            found = self._connection.execute(
                f"SELECT seq FROM {self._table} WHERE id = ? AND {condition}", [after, *values]
            ).fetchone()
            if found is None:
                raise HTTPError.wrong_value("after", after, "it must be an id of the list")
            conditions.append(f"seq {sign} ?")
            bound.append(found["seq"])
        # The inner query reads no more of a row than it must: bodies and results may be large.
        chosen = (
            f"SELECT seq FROM {self._table} WHERE {' AND '.join(conditions)} "
            f"ORDER BY seq {order} LIMIT ?"
        )
        rows = self._connection.execute(
            f"SELECT {self._columns} FROM {self._table} WHERE seq IN ({chosen}) "
            f"ORDER BY seq {order}",
            [*bound, limit + 1],
        ).fetchall()
        return Page([self._row(**row) for row in rows[:limit]], len(rows) > limit)


def _seen_by(owner: str) -> tuple[str, list[str]]:
    """Return the condition, and its values, for rows that an owner sees."""
    return ("owner IN ('', ?)", [owner]) if owner else ("1", [])
