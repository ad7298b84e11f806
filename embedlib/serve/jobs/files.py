"""The rows of files: what was uploaded, and the outputs of batches."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.database import Page, insert, seen_by, select_page

_COLUMNS = "id, purpose, filename, num_bytes, created_at, expires_at, owner"


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


class FileStore:
    """Files by id; called on the store's thread, inside its transactions.

    A method with an owner raises `HTTPError` for an id that is not there, or not for this owner.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Keep rows in a database; contents are in the folder."""
        self._connection = connection

    def add(self, row: FileRow) -> None:
        """Add a file whose content is there."""
        insert(self._connection, "files", asdict(row))

    def get(self, file_id: str, owner: str = "") -> FileRow:
        """Return a file that an owner sees."""
        condition, values = seen_by(owner)
        found = self._connection.execute(
            f"SELECT {_COLUMNS} FROM files WHERE id = ? AND {condition}", [file_id, *values]
        ).fetchone()
        if found is None:
            raise HTTPError(
                404, f"no file {file_id!r:.80} here; GET /v1/files lists them", "missing"
            )
        return FileRow(**found)

    def list(
        self,
        owner: str = "",
        *,
        after: str | None,
        limit: int,
        purpose: str | None,
        is_descending: bool,
    ) -> Page[FileRow]:
        """Return a page of the files that an owner sees."""
        rows, has_more = select_page(
            self._connection,
            "files",
            _COLUMNS,
            owner=owner,
            after=after,
            limit=limit,
            is_descending=is_descending,
            purpose=purpose,
        )
        return Page([FileRow(**row) for row in rows], has_more)

    def delete(self, file_id: str, owner: str = "") -> None:
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

    def ids(self) -> AbstractSet[str]:
        """Return the ids of all files, and of those that running batches write."""
        found = self._connection.execute(
            "SELECT id FROM files UNION SELECT output_file_id FROM batches WHERE ended_at IS NULL "
            "UNION SELECT error_file_id FROM batches WHERE ended_at IS NULL"
        )
        return {row[0] for row in found}
