"""The rows of batches: their states, and how far each one has come."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from embedlib.serve.errors import HTTPError
from embedlib.serve.jobs.database import Store
from embedlib.serve.jobs.files import FileRow, FileStore
from embedlib.serve.jobs.folder import DataFolder

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
End = Literal["completed", "expired", "cancelled"]


@dataclass(kw_only=True)
class BatchRow:
    """One batch; times are in Unix seconds."""

    id: str
    status: Status
    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: str | None
    """A JSON object."""
    output_seconds: int
    """How long its outputs are kept."""
    created_at: int
    expires_at: int
    output_file_id: str
    """A file only when the batch has ended, and has an output."""
    error_file_id: str
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    ended_at: int | None = None
    errors: str | None = None
    """A JSON list of what is wrong with the input."""
    model: str | None = None
    num_total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    num_lines: int = 0
    """Lines of the input whose answers are in the outputs."""
    input_offset: int = 0
    """Where the next line begins."""
    output_bytes: int = 0
    """Of the output's content, those that count; a killed server may have left more."""
    error_bytes: int = 0
    owner: str = ""
    """Who made it, and sees it and its files; empty: a server without keys."""
    traceparent: str = ""
    """Of the request that made it; empty: it had none."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Some lines more of a batch, answered; the first two count from its beginning."""

    input_offset: int
    num_lines: int
    output: bytes = b""
    errors: bytes = b""
    num_completed: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    model: str | None = None


class BatchStore(Store[BatchRow]):
    """The batches; their outputs are in the folder until they end, and then files."""

    def __init__(
        self, connection: sqlite3.Connection, folder: DataFolder, files: FileStore
    ) -> None:
        """Keep rows in a database, and outputs in a folder."""
        super().__init__(connection, "batches", BatchRow, "batch", "GET /v1/batches lists them")
        self._folder = folder
        self._files = files

    def add(self, row: BatchRow) -> None:
        """Add a batch.

        Raises:
            HTTPError: its input is not there, or is an output.
        """
        found = self._files.get(row.input_file_id, row.owner)
        if found.purpose != "batch":
            raise HTTPError(
                400,
                f"input_file_id = {found.id!r} has the purpose {found.purpose}; upload one with "
                "purpose=batch",
                param="input_file_id",
            )
        self.insert(row)

    def open(self, *, limit: int, now: float, but: Collection[str]) -> Sequence[BatchRow]:
        """Return batches that have not ended: first those that only have to be, then the oldest.

        Args:
            limit: how many at most.
            now: the time.
            but: of these, only those that have to be ended.
        """
        places = ", ".join("?" * len(but))
        found = self._connection.execute(
            f"SELECT {self._columns} FROM (SELECT *, status = 'cancelling' OR expires_at <= ? "
            "AS is_over FROM batches WHERE ended_at IS NULL) "
            f"WHERE is_over OR id NOT IN ({places}) "
            "ORDER BY is_over DESC, seq LIMIT ?",
            [now, *but, limit],
        )
        return [BatchRow(**row) for row in found]

    def begin(self, batch_id: str, num_total: int, now: int) -> None:
        """Record that the input is right; a batch that was cancelled meanwhile stays so."""
        self.update(batch_id, num_total=num_total, in_progress_at=now)
        self._connection.execute(
            "UPDATE batches SET status = 'in_progress' WHERE id = ? AND status = 'validating'",
            [batch_id],
        )

    def fail(self, batch_id: str, errors: Sequence[dict[str, Any]], now: int) -> None:
        """Record that the input is wrong, or that the server cannot go on with it."""
        row = self.get(batch_id)
        if not self._folder.has(row.output_file_id, row.output_bytes):
            self.update(batch_id, output_bytes=0)
        if not self._folder.has(row.error_file_id, row.error_bytes):
            self.update(batch_id, error_bytes=0)
        self._keep_outputs(self.get(batch_id), now)
        self.update(
            batch_id,
            status="failed",
            errors=json.dumps(list(errors)),
            failed_at=now,
            ended_at=now,
        )

    def save(self, batch_id: str, progress: Progress) -> None:
        """Append answers to the outputs, and record that they are there.

        A server that is killed between the two appends them again in the same place.
        """
        row = self.get(batch_id)
        if progress.output:
            self._folder.append(row.output_file_id, row.output_bytes, progress.output)
        if progress.errors:
            self._folder.append(row.error_file_id, row.error_bytes, progress.errors)
        self.update(
            batch_id,
            input_offset=progress.input_offset,
            num_lines=progress.num_lines,
            num_completed=row.num_completed + progress.num_completed,
            num_failed=row.num_failed + progress.num_failed,
            num_tokens=row.num_tokens + progress.num_tokens,
            output_bytes=row.output_bytes + len(progress.output),
            error_bytes=row.error_bytes + len(progress.errors),
            model=row.model or progress.model,
        )

    def cancel(self, batch_id: str, now: int, owner: str) -> BatchRow:
        """Record that a batch is to end; return it.

        Raises:
            HTTPError: it has ended.
        """
        row = self.get(batch_id, owner)
        if row.ended_at is not None:
            raise HTTPError(
                400, f"the batch {batch_id} is {row.status}; there is nothing to cancel"
            )
        if row.status != "cancelling":
            self.update(batch_id, status="cancelling", cancelling_at=now)
        return self.get(batch_id)

    def finish(self, batch_id: str, end: End, now: int) -> None:
        """Record the end of a batch."""
        self._keep_outputs(self.get(batch_id), now)
        ended = {f"{end}_at": now}
        self.update(batch_id, status=end, finalizing_at=now, ended_at=now, **ended)

    def _keep_outputs(self, row: BatchRow, now: int) -> None:
        """Make files of the outputs of a batch that ends."""
        for file_id, num_bytes, what in (
            (row.output_file_id, row.output_bytes, "output"),
            (row.error_file_id, row.error_bytes, "error"),
        ):
            if not num_bytes:
                self._folder.remove(file_id)
            else:
                self._folder.append(file_id, num_bytes, b"")  # a killed server may have left more
                self._files.insert(
                    FileRow(
                        id=file_id,
                        purpose="batch_output",
                        filename=f"{row.id}_{what}.jsonl",
                        num_bytes=num_bytes,
                        created_at=now,
                        expires_at=now + row.output_seconds,
                        owner=row.owner,
                    )
                )

    def delete_ended(self, before: float) -> None:
        """Delete the batches that ended before a time."""
        self._connection.execute("DELETE FROM batches WHERE ended_at <= ?", [before])

    def count(self) -> dict[str, int]:
        """Return how many have not ended, by status."""
        found = self._connection.execute(
            "SELECT status, count(*) FROM batches WHERE ended_at IS NULL GROUP BY status"
        )
        return dict(found.fetchall())
