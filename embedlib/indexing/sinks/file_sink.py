"""Sinks for files: `jsonl:FILE`, `npy:FILE` and `parquet:FILE`.

None of these formats can be changed in place, and a process may be killed at any instant. So the
rows are stored in an SQLite database in the folder FILE.embedlib, which is transactional and can be
queried for existing rows. `finish` exports them to a temporary file and renames it to FILE. FILE is
for reading, not for editing. Removing the folder means starting over.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import SinkError
from embedlib.indexing.extras import import_extra
from embedlib.indexing.filters.expression import Filter
from embedlib.indexing.rows import Row
from embedlib.indexing.sinks.file_lock import FileLock
from embedlib.indexing.sinks.file_search import search_rows
from embedlib.indexing.sinks.protocol import (
    Hit,
    RowKey,
    SinkState,
    Target,
    Tell,
    check_target,
    check_vectors,
)
from embedlib.indexing.sinks.urls import SinkUrl
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.files import open_writer

FOLDER_SUFFIX = ".embedlib"
"""Appended to the name of a file: the folder with its rows."""
ROWS_SUFFIX = ".rows.jsonl"
"""Appended to the name of an npy file: a line of JSON for each of its vectors."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS load (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS row (
    number INTEGER PRIMARY KEY, id BLOB UNIQUE NOT NULL, source_id TEXT NOT NULL,
    chunk INTEGER NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL, digest BLOB NOT NULL,
    vector BLOB NOT NULL)""",
)
_UPSERT = """
INSERT INTO row (id, source_id, chunk, text, metadata, digest, vector) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET text = excluded.text, metadata = excluded.metadata,
    digest = excluded.digest, vector = excluded.vector
"""
_FIRST_BYTES = {b"\x93NUMPY": "npy", b"PAR1": "parquet", b"{": "jsonl"}
"""How the files of each format begin. Source: numpy.lib.format; Apache Parquet, file format."""
_SLICE = 500
"""Ids per statement: below the limit of 999 parameters in older versions of SQLite."""


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

    def __init__(self, scheme: str, path: Path) -> None:
        self.name = f"{scheme}:{path}"
        self._path = path
        self._format = scheme
        self._files = {str(path): scheme}
        if scheme == "npy":
            self._files[f"{path}{ROWS_SUFFIX}"] = "rows"
        self._folder = path.with_name(f"{path.name}{FOLDER_SUFFIX}")
        self._database: sqlite3.Connection | None = None
        self._lock: FileLock | None = None

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
            self._check_format()
            target = self._target()
            if target is None:
                return None
            (num_rows,) = self._connect().execute("SELECT count(*) FROM row").fetchone()
            return SinkState(
                num_rows=num_rows,
                dim=target.dim,
                similarity=target.similarity,
                fingerprint=target.fingerprint,
                model=target.model,
                precision=target.precision,
                index="none, exact scan",
            )

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
                for statement in _SCHEMA:
                    database.execute(statement)
                if target.recreate:  # not by removing the file: a search may have it open
                    database.execute("DELETE FROM row")
                    database.execute("DELETE FROM load")
                database.executemany(
                    "INSERT OR REPLACE INTO load VALUES (?, ?)",
                    ((key, json.dumps(value)) for key, value in asdict(target).items()),
                )
            if target.recreate:
                for file in self._files:
                    Path(file).unlink(missing_ok=True)

    def digests(self, ids: Sequence[UUID]) -> dict[UUID, bytes]:
        """Return the digests of stored rows."""
        found: dict[UUID, bytes] = {}
        with self._errors():
            for part in _slices([id_.bytes for id_ in ids]):
                marks = ", ".join("?" * len(part))
                query = f"SELECT id, digest FROM row WHERE id IN ({marks})"
                rows = self._connect().execute(query, part)
                found.update((UUID(bytes=id_), digest) for id_, digest in rows)
        return found

    def write(self, rows: Sequence[Row], vectors: Vectors) -> None:
        """Insert or replace in one transaction."""
        with self._change() as database:
            target = self._target()
            assert target is not None, "write before begin"
            check_vectors(vectors, len(rows), target.dim)
            blobs = np.ascontiguousarray(vectors, "<f4")
            database.executemany(
                _UPSERT,
                (
                    (
                        row.id.bytes,
                        row.source_id,
                        row.chunk,
                        row.text,
                        json.dumps(row.metadata, ensure_ascii=False),
                        row.digest,
                        blob.tobytes(),
                    )
                    for row, blob in zip(rows, blobs, strict=True)
                ),
            )

    def write_metadata(self, rows: Sequence[Row]) -> None:
        """Replace metadata and digest in one transaction."""
        with self._change() as database:
            database.executemany(
                "UPDATE row SET metadata = ?, digest = ? WHERE id = ?",
                (
                    (json.dumps(row.metadata, ensure_ascii=False), row.digest, row.id.bytes)
                    for row in rows
                ),
            )

    def scan(self) -> Iterator[RowKey]:
        """Yield rows in the order they were first written."""
        with self._errors():
            for id_, source_id, chunk in self._connect().execute(
                "SELECT id, source_id, chunk FROM row ORDER BY number"
            ):
                yield RowKey(id=UUID(bytes=id_), source_id=source_id, chunk=chunk)

    def delete(self, ids: Sequence[UUID]) -> None:
        """Remove rows in one transaction."""
        with self._change() as database:
            database.executemany("DELETE FROM row WHERE id = ?", ((id_.bytes,) for id_ in ids))

    def finish(self) -> None:
        """Export the rows, unless the file is unchanged since its last export in this format."""
        database = self._connect()
        with self._errors():
            written = database.execute("SELECT value FROM load WHERE key = 'written'").fetchone()
            if written == (self._stamp(),):
                return
            self._export()
            database.execute("INSERT OR REPLACE INTO load VALUES ('written', ?)", (self._stamp(),))

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """Compare the vector with every row."""
        return self._search(vector, k, None)

    def search_where(self, vector: NDArray[np.float32], k: int, where: Filter) -> list[Hit]:
        """Compare the vector with every row that passes the filter."""
        return self._search(vector, k, where)

    def _search(self, vector: NDArray[np.float32], k: int, where: Filter | None) -> list[Hit]:
        with self._errors():
            target = self._target()
            if target is None:
                raise SinkError(f"{self.name} holds nothing; load it with embedlib index")
            return search_rows(self._connect(), target.similarity, vector, k, where)

    def close(self) -> None:
        """Close the database and release the lock."""
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_format(self) -> None:
        """Refuse to replace a file by one of another format."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            first = file.read(max(map(len, _FIRST_BYTES)))
        found = [kind for start, kind in _FIRST_BYTES.items() if first.startswith(start)]
        if found and found != [self._format]:
            raise SinkError(
                f"{self._path} was written as {found[0]}, this is {self.name}; write "
                f"{found[0]}:{self._path}, or choose another name"
            )

    def _connect(self) -> sqlite3.Connection:
        if self._database is None:
            path = (self._folder / "rows.sqlite").absolute()
            # SQLite creates files of its own unless it is told that the database cannot change,
            # which is true if the folder is read-only and no writer's log exists.
            is_fixed = not os.access(self._folder, os.W_OK) and not os.path.exists(f"{path}-wal")
            # One thread at a time calls, but not always the same.
            self._database = sqlite3.connect(
                f"file:{quote(str(path))}{'?immutable=1' if is_fixed else ''}",
                uri=True,
                check_same_thread=False,
                isolation_level=None,
            )
        return self._database

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        database = self._connect()
        with self._errors():
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            finally:
                if database.in_transaction:
                    database.execute("ROLLBACK")

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that also marks the exported file as out of date."""
        with self._transaction() as database:
            yield database
            database.execute("DELETE FROM load WHERE key = 'written'")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SinkError(f"cannot use {self.name}: {error} ({self._folder})") from error
        except OSError as error:
            raise SinkError(f"cannot write {self.name}: {error.strerror or error}") from error

    def _target(self) -> Target | None:
        """Return the target that `begin` stored; None: nothing was loaded."""
        if self._database is None and not (self._folder / "rows.sqlite").exists():
            return None
        database = self._connect()
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'load'").fetchone():
            return None  # killed before the tables were created
        rows = database.execute("SELECT key, value FROM load WHERE key != 'written'")
        return Target(**{key: json.loads(value) for key, value in rows})

    def _export(self) -> None:
        target = self._target()
        assert target is not None, "finish before begin"
        with ExitStack() as stack:
            writers = [
                stack.enter_context(open_writer(name, kind, target.dim))
                for name, kind in self._files.items()
            ]
            for fields, vector in self._stored_rows():
                for writer in writers:
                    writer.write(fields, vector)

    def _stamp(self) -> str:
        """Return a description of the exported files that an edit or another format changes."""
        found = [os.stat(file) for file in self._files if os.path.exists(file)]
        return json.dumps([self._format, *([file.st_size, file.st_mtime_ns] for file in found)])

    def _stored_rows(self) -> Iterator[tuple[dict[str, Any], NDArray[np.float32]]]:
        for id_, source_id, chunk, text, metadata, blob in self._connect().execute(
            "SELECT id, source_id, chunk, text, metadata, vector FROM row ORDER BY number"
        ):
            fields = {
                "id": str(UUID(bytes=id_)),
                "source_id": source_id,
                "chunk": chunk,
                "text": text,
                "metadata": json.loads(metadata),
            }
            yield fields, np.frombuffer(blob, "<f4")


def _slices(items: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(items), _SLICE):
        yield items[start : start + _SLICE]
