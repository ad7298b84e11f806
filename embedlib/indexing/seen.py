"""Which documents a run has read, in bounded memory: finds duplicates and missing rows."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Any

from embedlib.errors import SourceError

_CACHE_KIB = 8 * 1024


class Seen:
    """Source ids and their numbers of chunks, in a temporary file that ends with the process."""

    def __init__(self) -> None:
        # To close the database while another thread executes a statement would crash the
        # interpreter, and after Ctrl-C the reader's thread or the destination's may still do that.
        self._lock = threading.Lock()
        # The empty name is SQLite's private temporary database: on disk, removed when closed.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._execute("PRAGMA journal_mode = OFF")
        self._has_files = False
        self._execute("CREATE TABLE seen (id BLOB PRIMARY KEY, num_chunks INTEGER) WITHOUT ROWID")

    def add(self, source_id: str) -> bool:
        """Record a document; return False if it was recorded before."""
        num_rows, _ = self._execute("INSERT OR IGNORE INTO seen VALUES (?, NULL)", _key(source_id))
        return num_rows == 1

    def set_num_chunks(self, source_id: str, num_chunks: int) -> None:
        """Record how many rows a document has; without it, any number counts as right."""
        self._execute("UPDATE seen SET num_chunks = ? WHERE id = ?", num_chunks, _key(source_id))

    def add_file(self, name: str) -> None:
        """Record a file of which it is not known which documents it has; their ids are `NAME#...`.

        Any document of it that is stored counts as a bad row.
        """
        self._has_files = True
        self._execute("INSERT OR IGNORE INTO seen VALUES (?, NULL)", _file_key(name))

    def find(self, source_id: str) -> tuple[bool, int | None]:
        """Return whether a document was read or is a bad row, and how many rows it has.

        The number is None for a bad row: what is stored of it may be right.
        """
        found = self._find(_key(source_id))
        if found is None and self._has_files:
            found = self._find(_file_key(source_id.rpartition("#")[0]))
        return (False, None) if found is None else (True, found[0])

    def has_rows(self) -> bool:
        """Whether any document was read that is not a bad row."""
        _, found = self._execute("SELECT 1 FROM seen WHERE num_chunks > 0 LIMIT 1")
        return found is not None

    def close(self) -> None:
        """Remove the file."""
        with self._lock:
            self._database.close()

    def _find(self, key: bytes) -> tuple[int | None] | None:
        found: tuple[int | None] | None
        _, found = self._execute("SELECT num_chunks FROM seen WHERE id = ?", key)
        return found

    def _execute(self, statement: str, *values: object) -> tuple[int, Any]:
        """Return how many rows a statement has changed, and the first that it has found."""
        try:
            with self._lock:
                cursor = self._database.execute(statement, values)
                return cursor.rowcount, cursor.fetchone()
        except sqlite3.Error as error:
            raise _no_temporary_file(error) from error


@contextmanager
def temporary_file() -> Iterator[IO[bytes]]:
    """Open a file without a name, which ends with the process.

    Raises:
        SourceError: it cannot be made, or what is written there does not fit.
    """
    try:
        with TemporaryFile() as file:
            yield file
    except OSError as error:
        raise _no_temporary_file(error) from error


def _no_temporary_file(error: Exception) -> SourceError:
    return SourceError(
        f"cannot keep in a temporary file which documents were read: {error}; make room, or name "
        "another folder in TMPDIR"
    )


def _key(source_id: str) -> bytes:
    return blake2b(source_id.encode(), digest_size=16).digest()


def _file_key(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16, person=b"file").digest()
