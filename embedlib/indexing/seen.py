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

    def has(self, source_id: str, chunk: int) -> bool:
        """Whether this chunk of this document is, or may be, in the source."""
        found = self._database.execute(
            "SELECT num_chunks FROM seen WHERE id = ?", (_key(source_id),)
        ).fetchone()
        return found is not None and (found[0] is None or chunk < found[0])

    def close(self) -> None:
        """Remove the file."""
        self._database.close()


def _key(source_id: str) -> bytes:
    return blake2b(source_id.encode(), digest_size=16).digest()
