"""Sinks for files: `jsonl:FILE`, `npy:FILE` and `parquet:FILE`.

None of these formats can be changed in place, and a process may be killed at any instant. So the
rows are stored in an SQLite database in the folder FILE.embedlib, which is transactional and can be
queried for existing rows. `finish` exports them to a temporary file and renames it to FILE. FILE is
for reading, not for editing. Removing the folder means starting over.

`FILE.embedlib/rows.sqlite` may hold up to three sets of rows, see `file_tables`; FILE has those
that searches find.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.rows import Row, model_digest
from embedlib.indexing.sinks.checks import check_target, check_vectors
from embedlib.indexing.sinks.file_export import check_format, export, files_of, stamp
from embedlib.indexing.sinks.file_lock import FileLock
from embedlib.indexing.sinks.file_rows import (
    count_rows,
    read_digests,
    read_keys,
    read_stored,
    remove_rows,
    search_rows,
    write_metadata,
    write_rows,
)
from embedlib.indexing.sinks.file_tables import (
    BESIDE,
    DATABASE,
    FOUND,
    OLD,
    create_tables,
    drop_old_tables,
    one_snapshot,
    open_database,
    read_position,
    read_target,
    switch_tables,
    transaction,
    write_position,
)
from embedlib.indexing.sinks.protocol import Hit, RowKey, SinkState, Target, Tell
from embedlib.indexing.sinks.replaceable import ReplacedError, StoredRow
from embedlib.indexing.sinks.urls import SinkUrl
from embedlib.packages.installing import import_extra
from embedlib.vectors.arrays import Vectors

FOLDER_SUFFIX = ".embedlib"
"""Appended to the name of a file: the folder with its rows."""


def open_file_sink(url: SinkUrl) -> FileSink:
    """Make the sink of a URL such as `jsonl:vectors.jsonl`."""
    url.take()
    if str(url.path) == "-":
        raise SinkError(
            f"{url.scheme}:- is not standard output, since a destination keeps its rows for the "
            f"next run; write {url.scheme}:FILE, or print vectors with embedlib encode"
        )
    if not url.path.name:
        raise SinkError(f"{url.scheme}: needs a file, such as {url.scheme}:vectors.{url.scheme}")
    if url.scheme == "parquet":
        import_extra("pyarrow", "parquet")
    return FileSink(url.scheme, url.path)


class FileSink:
    """A file of rows in one of three formats."""

    def __init__(self, scheme: str, path: Path, rows: str = FOUND) -> None:
        self.name = f"{scheme}:{path}{' (beside)' if rows == BESIDE else ''}"
        self._path = path
        self._format = scheme
        self._rows = rows
        self._held: SinkState | None = None
        self._files = files_of(path, scheme)
        self._folder = path.with_name(f"{path.name}{FOLDER_SUFFIX}")
        self._database: sqlite3.Connection | None = None
        self._lock: FileLock | None = None

    @property
    def output_paths(self) -> list[str]:
        """The files that a load replaces."""
        return list(self._files)

    def inspect(self) -> SinkState | None:
        """Return what the folder beside the file holds; refuse a file embedlib did not write."""
        with self._errors():
            if not self._path.absolute().parent.is_dir():
                raise SinkError(
                    f"{self.name}: there is no folder {str(self._path.parent)!r}; make it"
                )
            for file in self._files:
                if os.path.lexists(file) and not self._folder.exists():
                    raise SinkError(
                        f"{file} exists and was not written by embedlib (no {self._folder.name} "
                        "beside it); choose another name or move it away"
                    )
            check_format(self._path, self._format)
            if not self._has_database:
                return None
            with one_snapshot(self._connect()):
                target = self._target()
                if target is None:
                    return None
                num_rows = count_rows(self._connect(), self._table)
            return target.to_state(num_rows, "none, exact scan")

    def begin(self, target: Target, tell: Tell) -> None:
        """Lock the folder; with `recreate`, drop the stored rows and the exported files."""
        with self._errors():
            self.inspect()  # refuses files of others before anything is created
            self._folder.mkdir(exist_ok=True)
            self._lock = FileLock(self._folder / "lock", self.name)
            check_target(self.inspect(), target, self.name)
            database = self._connect()
            database.execute("PRAGMA journal_mode = WAL")  # a search reads while rows are written
            database.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                create_tables(database, self._rows)
                if target.recreate:  # not by removing the file: a search may have it open
                    database.execute(f"DELETE FROM {self._table}")
                    database.execute(f"DELETE FROM {self._rows}load")
                    write_position(database, self._rows, None)
                database.executemany(
                    f"INSERT OR REPLACE INTO {self._rows}load VALUES (?, ?)",
                    ((key, json.dumps(value)) for key, value in asdict(target).items()),
                )
            if target.recreate and self._rows == FOUND:
                for file in self._files:
                    Path(file).unlink(missing_ok=True)

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        with self._errors():
            return read_digests(self._connect(), self._table, ids)

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Insert or replace in one transaction."""
        with self._change() as database:
            target = self._target()
            assert target is not None, "write before begin"
            check_vectors(vectors, len(rows), target.dim)
            write_rows(database, self._table, rows, vectors)

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest in one transaction."""
        with self._change() as database:
            write_metadata(database, self._table, rows)

    def scan(self) -> Iterator[RowKey]:
        """Yield rows in the order they were first written."""
        with self._errors():
            yield from read_keys(self._connect(), self._table)

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows in one transaction."""
        with self._change() as database:
            remove_rows(database, self._table, ids)

    def finish(self) -> None:
        """Export the rows, unless the file is unchanged since its last export in this format."""
        if self._rows != FOUND:
            return
        with self._errors():
            database, target = self._connect(), self._target()
            assert target is not None, "finish before begin"
            written = database.execute("SELECT value FROM load WHERE key = 'written'").fetchone()
            if written == (stamp(self._files, self._format),):
                return
            export(database, self._files, target.dim)
            database.execute(
                "INSERT OR REPLACE INTO load VALUES ('written', ?)",
                (stamp(self._files, self._format),),
            )

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Compare the vector with every row."""
        return self.search_where(vector, k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter | None) -> list[Hit]:
        """Compare the vector with every row that passes the filter."""
        with self._errors():
            if not self._has_database:
                raise SinkError(f"{self.name} holds nothing; load it with embedlib index")
            database = self._connect()
            with one_snapshot(database):
                rows, target = self._find_held()
                return search_rows(database, target.similarity, vector, k, where, f"{rows}row")

    def hold(self, state: SinkState) -> None:
        """Search only among rows of this model; each search looks where they are."""
        self._held = state

    def _find_held(self) -> tuple[str, Target]:
        """Return which rows are searched."""
        now, held = self._target(), self._held
        if held is not None:
            for rows in (FOUND, OLD):
                target = read_target(self._connect(), rows)
                if target and model_digest(target.fingerprint) == model_digest(held.fingerprint):
                    return rows, target
            raise ReplacedError(self.name, held, now.model if now is not None else None)
        if now is None:
            raise SinkError(f"{self.name} holds nothing; load it with embedlib index")
        return self._rows, now

    def beside(self) -> FileSink:
        """Return the sink for rows of another model, in the same database."""
        return FileSink(self._format, self._path, BESIDE)

    def old(self) -> SinkState | None:
        """Return what is kept since the last switch."""
        with closing(FileSink(self._format, self._path, OLD)) as sink:
            return sink.inspect()

    def switch(self) -> None:
        """Rename the tables in one transaction, then export the rows."""
        with self._transaction() as database:
            switch_tables(database, self.name)
        self._rows = FOUND
        self.finish()

    def drop_old(self) -> None:
        """Drop the old tables, and give their room back; a second call, where the first could not.

        SQLite copies the other rows to a temporary folder and back, which a full disk refuses.
        """
        if not self._has_database or (self.old() is None and not self._num_free_pages()):
            return
        lock = FileLock(self._folder / "lock", self.name)
        try:
            with self._transaction() as database:
                drop_old_tables(database)
            try:
                database.execute("VACUUM")
            except sqlite3.Error as error:
                raise SinkError(
                    f"{self.name}: the old rows are removed, but {self._folder} is as large as "
                    f"before: {error}; make room there and in TMPDIR, and run drop-old again"
                ) from error
        finally:
            lock.release()

    def _num_free_pages(self) -> int:
        with self._errors():
            (num_pages,) = self._connect().execute("PRAGMA freelist_count").fetchone()
            return int(num_pages)

    def stored_rows(self, ids: Sequence[UUID]) -> dict[UUID, StoredRow]:
        """Return text and vector of stored rows."""
        with self._errors():
            return read_stored(self._connect(), self._table, ids)

    def load_position(self) -> str | None:
        """Return the line beside the rows."""
        with self._errors():
            return read_position(self._connect(), self._rows) if self._has_database else None

    def save_position(self, position: str | None) -> None:
        """Replace the line in one transaction; the exported file stays as it is."""
        with self._transaction() as database:
            write_position(database, self._rows, position)

    def close(self) -> None:
        """Close the database and release the lock."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def _table(self) -> str:
        return f"{self._rows}row"

    @property
    def _has_database(self) -> bool:
        if self._database is not None:
            return True
        try:  # Path.exists says no where it may not look, from Python 3.14 on
            os.stat(self._folder / DATABASE)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise SinkError(f"{self.name} cannot be read: {error.strerror}") from error
        return True

    def _connect(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = open_database(self._folder / DATABASE)
        return self._database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), transaction(self._connect()) as database:
            yield database

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that also marks the exported file as out of date."""
        with self._transaction() as database:
            yield database
            database.execute(f"DELETE FROM {self._rows}load WHERE key = 'written'")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            place = getattr(error, "filename", None) or self._folder
            raise SinkError(f"cannot use {self.name}: {reason} ({place})") from error

    def _target(self) -> Target | None:
        """Return the target that `begin` stored; None: nothing was loaded."""
        return read_target(self._connect(), self._rows) if self._has_database else None
