"""The rows of files: what was uploaded, and the outputs of batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.database import Store


@dataclass(frozen=True, kw_only=True)
class FileRow:
    """One file; times are in Unix seconds."""

    id: str
    purpose: str
    """`batch` or `batch_output`."""
    filename: str
    num_bytes: int
    created_at: int
    expires_at: int
    owner: str = ""
    """Who made it; empty: a server without keys."""


class FileStore(Store[FileRow]):
    """The files; their contents are in the folder."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Keep rows in a database."""
        super().__init__(connection, "files", FileRow, "file", "GET /v1/files lists them")

    def delete(self, file_id: str, owner: str) -> None:
        """Delete a file that an owner sees; its content is removed once this is on disk.

        Raises:
            HTTPError: a batch that runs reads it.
        """
        self.get(file_id, owner)
        batch = self._connection.execute(
            "SELECT id FROM batches WHERE ended_at IS NULL AND input_file_id = ?", [file_id]
        ).fetchone()
        if batch is not None:
            raise HTTPError(
                400, f"the batch {batch['id']} reads {file_id}; cancel it first, or wait for it"
            )
        self._connection.execute("DELETE FROM files WHERE id = ?", [file_id])

    def delete_expired(self, now: float) -> Sequence[str]:
        """Delete the files whose time is over and that no batch reads; return their ids."""
        found = self._connection.execute(
            "SELECT id FROM files WHERE expires_at <= ? AND id NOT IN "
            "(SELECT input_file_id FROM batches WHERE ended_at IS NULL) LIMIT 1000",
            [now],
        )
        ids = [row["id"] for row in found.fetchall()]
        for file_id in ids:
            self._connection.execute("DELETE FROM files WHERE id = ?", [file_id])
        return ids

    def ids(self) -> set[str]:
        """Return the ids of all files, and of those that running batches write."""
        found = self._connection.execute(
            "SELECT id FROM files UNION SELECT output_file_id FROM batches WHERE ended_at IS NULL "
            "UNION SELECT error_file_id FROM batches WHERE ended_at IS NULL"
        )
        return {row[0] for row in found}
