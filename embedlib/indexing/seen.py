"""Which documents a run has read, in bounded memory: finds duplicates and missing rows."""

from __future__ import annotations

import sqlite3
from hashlib import blake2b

_CACHE_KIB = 8 * 1024


class Seen:
    """Source ids and their numbers of chunks, in a temporary file that ends with the process."""

    def __init__(self) -> None:
        # The empty name is SQLite's private temporary database: on disk, removed when closed.
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE seen (id BLOB PRIMARY KEY, num_chunks INTEGER) WITHOUT ROWID"
        )

    def add(self, source_id: str) -> bool:
        """Record a document; return False if it was recorded before."""
        cursor = self._database.execute(
            "INSERT OR IGNORE INTO seen VALUES (?, NULL)", (_key(source_id),)
        )
        return cursor.rowcount == 1

    def set_num_chunks(self, source_id: str, num_chunks: int) -> None:
        """Record how many rows a document has; without it, any number counts as right."""
        self._database.execute(
            "UPDATE seen SET num_chunks = ? WHERE id = ?", (num_chunks, _key(source_id))
        )

    def find(self, source_id: str) -> tuple[bool, int | None]:
        """Return whether a document was read or is a bad row, and how many rows it has.

        The number is None for a bad row: what is stored of it may be right.
        """
        found = self._database.execute(
            "SELECT num_chunks FROM seen WHERE id = ?", (_key(source_id),)
        ).fetchone()
        return (False, None) if found is None else (True, found[0])

    def has_rows(self) -> bool:
        """Whether any document was read that is not a bad row."""
        found = self._database.execute("SELECT 1 FROM seen WHERE num_chunks > 0 LIMIT 1")
        return found.fetchone() is not None

    def close(self) -> None:
        """Remove the file."""
        self._database.close()


def _key(source_id: str) -> bytes:
    return blake2b(source_id.encode(), digest_size=16).digest()
