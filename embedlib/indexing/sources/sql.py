"""Rows of a SQL query as a source: PostgreSQL, streamed from the server, or a SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from embedlib.errors import SourceError
from embedlib.indexing.rows import BadRow, Document
from embedlib.indexing.sinks.protocol import Tell
from embedlib.indexing.sinks.urls import without_password
from embedlib.indexing.sources.arrow_rows import repeated_columns
from embedlib.indexing.sources.file_bytes import is_denied
from embedlib.indexing.sources.postgres_values import load_as_written
from embedlib.indexing.sources.protocol import Source, SourceOptions
from embedlib.indexing.sources.row_fields import SAMPLE_ROWS, RawRow, choose_fields
from embedlib.indexing.sources.sql_positions import Highest, Value, changed_since
from embedlib.packages.installing import import_extra

CONNECT_SECONDS = "10"
"""Time limit for a connection; the default of psycopg is more than two minutes."""
_VANISHED = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""With these a server that has vanished is noticed after a minute: the first three while its answer
is awaited, not after two hours, the last in milliseconds while something is sent, not after 15
minutes."""
_TIME_LIMITS = ("statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout")
"""Of the server. A load reads in one transaction, which is idle while rows are embedded."""
POSTGRES_NO_ANSWER = (
    "the server does not answer; check the host and the port, or give it longer with "
    "connect_timeout=SECONDS in the URL or in PGCONNECT_TIMEOUT"
)

_FETCH_ROWS = 256
"""Each may hold a whole book. 1,000 rows of 100 kB took 300 MB, and 256 small ones take 0.6 us more
of a row."""
_OPEN_SECONDS = """
SELECT coalesce(extract(epoch FROM max(clock_timestamp() - since)), 0) FROM (
SELECT xact_start AS since FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
UNION ALL SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()) AS open
"""
"""Source: PostgreSQL, pg_stat_activity, where those of others are null without pg_read_all_stats,
and pg_prepared_xacts, which does not have when one began."""

_Rows = Generator[RawRow, None, None]
_Read = Callable[[str, Sequence[object]], _Rows]
"""Runs a query with parameters."""


def open_sql_source(url: str, query: str, options: SourceOptions, tell: Tell) -> Source:
    """Return the rows of a query as a source; it runs when it is iterated, read-only.

    Args:
        url: `postgresql://...` as libpq defines it, or `sqlite:PATH`.
        query: one SELECT. Its rows need an id field, because their order is not fixed.
        options: which fields are id, text and metadata, and whether only rows that have changed
            since the last load are read (`since_field`).
        tell: called with a line for every guess.

    Raises:
        SourceError: the scheme is unknown, the file does not exist, or a package is missing.
    """
    scheme, _, path = url.partition(":")
    if scheme.lower() == "sqlite":
        path = os.path.expanduser(path)
        if not os.path.isfile(path) and not is_denied(path):
            raise SourceError(f"{url}: there is no such file; write sqlite:PATH")
        database = _Database(
            name=url,
            place=os.path.abspath(path),
            mark="?",
            read=lambda query, values: _read_sqlite(path, query, values, url),
            input_paths=(path,),
        )
    else:
        # The part after "?" may contain a password too.
        name = without_password(url).partition("?")[0]
        if scheme.lower() not in ("postgresql", "postgres"):
            raise SourceError(f"{name}: write postgresql://HOST/DATABASE or sqlite:PATH")
        database = _Database(
            name=name,
            place=_check_postgres_url(url, name),
            mark="%s",
            read=lambda query, values: _read_postgres(url, query, values, name),
            open_seconds=lambda: _open_seconds(url, name),
        )
    kind = _SqlSource if options.since_field is None else _GrowingSqlSource
    return kind(database, query, options, tell)


@dataclass(frozen=True, kw_only=True)
class _Database:
    """Where a query runs.

    Attributes:
        name: for messages, without its password.
        place: which database it is, however its URL is written.
        mark: how a query writes a parameter.
        read: runs one.
        input_paths: its files.
        open_seconds: returns for how long a transaction is open whose rows are not visible yet.
    """

    name: str
    place: str
    mark: str
    read: _Read
    input_paths: Sequence[str] = ()
    open_seconds: Callable[[], float] = lambda: 0.0


class _SqlSource:
    """The rows of a query, all of them in every run."""

    def __init__(self, database: _Database, query: str, options: SourceOptions, tell: Tell) -> None:
        self.input_paths = database.input_paths
        self._database = database
        self._name = database.name
        self._query = query
        self._options = options
        self._tell = tell

    def _read(self) -> _Rows:
        return self._database.read(self._query, ())

    def __iter__(self) -> Iterator[Document | BadRow]:
        rows = self._read()
        try:
            sample = list(islice(rows, SAMPLE_ROWS))
            if not sample:
                return
            fields, guesses = choose_fields(sample, self._options, self._name, is_table=True)
            if fields.id is None:
                raise SourceError(
                    f"{self._name}: no column has the name of an id, and the rows of a query have "
                    "no fixed number; choose a column with id_field (--id-field)"
                )
            if guesses:
                self._tell(f"{self._name}: {guesses}")
            for row in chain(sample, rows):
                yield fields.to_document(row, self._name)
        finally:
            # Closed now, not by the garbage collector: it holds a connection and a transaction.
            rows.close()


class _GrowingSqlSource(_SqlSource):
    """Rows of a query; `embedlib.indexing.ResumableSource` documents the members."""

    def __init__(self, database: _Database, query: str, options: SourceOptions, tell: Tell) -> None:
        super().__init__(database, query, options, tell)
        assert options.since_field is not None
        self._field = options.since_field
        self._highest = Highest(self._field, options.since_overlap, database.name, tell)
        self._begin: Value | None = None

    @property
    def scope(self) -> str:
        """The query, and what is read of its rows."""
        options = self._options
        fields = (self._field, options.id_field, options.text_fields, options.metadata_fields)
        return json.dumps([self._database.place, self._query, *fields])

    def resume(self, position: str) -> None:
        """Read the rows from this position on."""
        self._begin = self._highest.resume(position)

    def position(self) -> str | None:
        """Return the position after the last row."""
        return self._highest.position()

    def _read(self) -> _Rows:
        self._highest.begin(self._database.open_seconds())  # before the first row is read
        query, values = self._query, list[object]()
        if self._begin is not None:
            query = changed_since(query, self._field, self._database.mark, self._begin)
            values.append(self._begin)
        with closing(self._database.read(query, values)) as rows:
            for row in rows:
                if self._field not in row.fields:
                    raise SourceError(
                        f"{self._name}: there is no field {self._field!r}; the fields are "
                        f"{', '.join(map(repr, row.fields))}; name one with since_field "
                        "(--since-field)"
                    )
                self._highest.see(row.fields[self._field])
                yield row


def _read_sqlite(path: str, query: str, values: Sequence[object], name: str) -> _Rows:
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        # Another thread than the one that reads may close the connection.
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        with closing(connection):
            # With surrogates a text that is not UTF-8 is one bad row; an error would end the load.
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            cursor = connection.execute(query, values)
            yield from _rows_of(cursor, name)
    except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError) as error:
        # The last: of a position.
        raise SourceError(f"{name}: {error}") from error


def _check_postgres_url(url: str, name: str) -> str:
    """Return which database a URL names, without the passwords in it."""
    psycopg = import_extra("psycopg", "pgvector", SourceError)
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except Exception:  # its message may contain a part of the password
        raise SourceError(
            f"{name}: PostgreSQL cannot read this URL; write "
            "postgresql://USER:PASSWORD@HOST/DATABASE, and special characters as %XX"
        ) from None
    return json.dumps({key: given[key] for key in sorted(given) if "password" not in key})


def _read_postgres(url: str, query: str, values: Sequence[object], name: str) -> _Rows:
    with _connected(url, name) as connection:
        connection.execute(
            # In this transaction only: a pooler may hand the session on.
            "SELECT set_config(name, '0', true) FROM pg_settings WHERE name = ANY (%s)",
            [list(_TIME_LIMITS)],
        )
        load_as_written(connection)
        # A named cursor stays on the server and sends some rows at a time.
        with connection.cursor(name="embedlib_source") as cursor:
            cursor.execute(query, values or None)  # with None, % is no parameter
            yield from _rows_of(cursor, name)


def _open_seconds(url: str, name: str) -> float:
    """Return for how long the oldest transaction of others is open, of those that are shown."""
    with _connected(url, name) as connection:
        [seconds] = connection.execute(_OPEN_SECONDS).fetchone()
    return float(seconds)


@contextmanager
def _connected(url: str, name: str) -> Iterator[Any]:
    psycopg = import_extra("psycopg", "pgvector", SourceError)
    remedy = ""
    try:
        # Of a database in SQL_ASCII psycopg would return bytes.
        given = {"client_encoding": "UTF8", **psycopg.conninfo.conninfo_to_dict(url)}
        with psycopg.connect(**with_connect_timeout(given)) as connection:
            connection.read_only = True
            remedy = "; run the load again to continue"
            yield connection
    except psycopg.errors.ConnectionTimeout as error:
        raise SourceError(f"{name}: {POSTGRES_NO_ANSWER}") from error
    except (psycopg.Error, UnicodeError) as error:  # the latter: of a host such as "a..b"
        first = str(error).strip().partition("\n")[0]
        # Others are of the query, also of a limit that it exceeds (54) or what is not ready (55).
        is_of_query = (getattr(error, "sqlstate", None) or "").startswith(("54", "55"))
        is_lost = isinstance(error, psycopg.OperationalError) and not is_of_query
        said = first or type(error).__name__
        raise SourceError(f"{name}: {said}{remedy if is_lost else ''}") from error


def with_connect_timeout(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add time limits to libpq's parameters, unless they are set.

    They are for a server that does not answer a new connection, and for one that vanishes later.
    """
    is_set = "PGCONNECT_TIMEOUT" in os.environ
    first = {} if is_set else {"connect_timeout": CONNECT_SECONDS}
    return {**_VANISHED, **first, **given}


def _rows_of(cursor: Any, name: str) -> Iterator[RawRow]:
    """Yield what a query has found."""
    if cursor.description is None:
        raise SourceError(f"{name}: the query returns no rows; it must be a SELECT")
    names = [str(column[0]) for column in cursor.description]
    problem = repeated_columns(names)
    if problem is not None:
        raise SourceError(f"{name}: the query {problem} with AS")
    number = 0
    while batch := cursor.fetchmany(_FETCH_ROWS):
        for values in batch:
            number += 1
            fields = dict(zip(names, values, strict=True))
            yield RawRow(number=number, place=f"row {number} of {name}", fields=fields)
