"""The rows of asynchronous requests: a queue with priorities, results, and webhooks to deliver."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from embedlib.serve.jobs.database import HOST, Store

SHRINK_PAGES = 2048
"""Of 4 KiB, that are given back at once: their places are written anew first, and what else asks
the database waits meanwhile."""
Status = Literal[
    "QUEUED", "IN_PROGRESS", "SUCCEEDED", "FAILED", "EXPIRED", "CANCELED", "WEBHOOK_FAILED"
]
WebhookStatus = Literal["PENDING", "SUCCEEDED", "FAILED", "CANCELED", "NO_WEBHOOK_PROVIDED"]


@dataclass(kw_only=True)
class RequestRow:
    """One request; times are in Unix seconds."""

    id: str
    status: Status
    path: str
    num_bytes: int
    """Of the body, and then of the result."""
    priority: int
    """Lower ones first."""
    created_at: float
    status_at: float
    queue_until: float
    """After it the request expires, unless it runs."""
    not_before: float
    """When it may run."""
    num_attempts: int = 0
    max_attempts: int
    delay_ms: int
    """Before the second attempt; doubled before each one after it."""
    max_delay_ms: int
    model: str = ""
    http_status: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    webhook: str | None = None
    webhook_status: WebhookStatus
    webhook_attempts: int = 0
    webhook_at: float | None = None
    """When to deliver it; None: not, or not any more."""
    ended_at: float | None = None
    owner: str = ""
    """Who made it; empty: a server without keys."""
    traceparent: str = ""
    """Of the request that made it; empty: it had none."""


@dataclass(frozen=True)
class Result:
    """The end of a request."""

    status: Status
    http_status: int | None
    body: bytes | None
    """JSON; None: there is only an error."""
    model: str
    error_code: str | None = None
    error_message: str | None = None


_DUE: Final = f"""
WITH RECURSIVE hosts (host) AS (
    SELECT min({HOST}) FROM requests WHERE webhook_at IS NOT NULL
    UNION ALL
    SELECT (SELECT min({HOST}) FROM requests WHERE webhook_at IS NOT NULL AND {HOST} > host)
    FROM hosts WHERE host IS NOT NULL
)
SELECT id FROM hosts JOIN requests ON seq IN (
    SELECT seq FROM requests WHERE {HOST} = host AND webhook_at <= :now
    ORDER BY webhook_at LIMIT :most
) ORDER BY webhook_at
"""
"""The first webhooks of each host; a host is found from the one before, in the index, so that not
all that wait for one are read."""


class RequestStore(Store[RequestRow]):
    """The asynchronous requests, with their bodies and then their results."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """Keep rows in a database."""
        super().__init__(
            connection,
            "requests",
            RequestRow,
            "request",
            "it may have ended so long ago that it was deleted (--keep-jobs-hours)",
        )

    def recover(self) -> None:
        """Queue again what ran when a server was killed."""
        self._connection.execute(
            "UPDATE requests SET status = 'QUEUED' WHERE status = 'IN_PROGRESS'"
        )

    def blob(self, request_id: str, column: Literal["body", "result"]) -> bytes:
        """Return the body of a request that has not ended, or its result; empty: it has none."""
        found = self._connection.execute(
            f"SELECT {column} FROM requests WHERE id = ?", [request_id]
        ).fetchone()
        blob: bytes | None = found[column] if found is not None else None
        return blob or b""

    def take(self, *, max_requests: int, max_bytes: int, now: float) -> Sequence[RequestRow]:
        """Mark the next requests as running and return them; at least one, if any is due."""
        # Left to itself SQLite takes the index of the status, and reads and sorts the whole queue.
        found = self._connection.execute(
            f"SELECT {self._columns} FROM requests INDEXED BY requests_queue "
            "WHERE status = 'QUEUED' AND not_before <= ? AND queue_until > ? "
            "ORDER BY priority, seq LIMIT ?",
            [now, now, max_requests],
        )
        taken: list[RequestRow] = []
        for row in (RequestRow(**row) for row in found.fetchall()):
            max_bytes -= row.num_bytes
            if taken and max_bytes < 0:
                break
            self.update(row.id, status="IN_PROGRESS", status_at=now)
            taken.append(row)
        return taken

    def put_back(self, request_id: str, *, not_before: float, num_attempts: int) -> None:
        """Queue a request again; one that does not run any more stays as it is."""
        self._connection.execute(
            "UPDATE requests SET status = 'QUEUED', not_before = ?, num_attempts = ? "
            "WHERE id = ? AND status = 'IN_PROGRESS'",
            [not_before, num_attempts, request_id],
        )

    def end(self, request_id: str, result: Result, now: float) -> None:
        """Record the end of a request, and that its webhook is to be delivered."""
        self._connection.execute(
            "UPDATE requests SET status = ?, status_at = ?, ended_at = ?, body = NULL, "
            "result = ?, num_bytes = ?, http_status = ?, model = ?, error_code = ?, "
            "error_message = ?, webhook_at = CASE webhook_status WHEN 'PENDING' THEN ? END "
            "WHERE id = ? AND ended_at IS NULL",
            [
                *(result.status, now, now, result.body, len(result.body or b"")),
                *(result.http_status, result.model, result.error_code, result.error_message),
                *(now, request_id),
            ],
        )

    def cancel(self, request_id: str, now: float, owner: str) -> bool:
        """Cancel a request; return whether it was queued, as only such a one can be."""
        if self.get(request_id, owner).status != "QUEUED":
            return False
        self.end(request_id, Result("CANCELED", None, None, ""), now)
        self._connection.execute(
            "UPDATE requests SET webhook_status = 'CANCELED', webhook_at = NULL "
            "WHERE id = ? AND webhook_status = 'PENDING'",
            [request_id],
        )
        return True

    def expire(self, now: float) -> int:
        """End the requests that waited for too long; return how many."""
        found = self._connection.execute(
            "SELECT id, created_at, queue_until FROM requests INDEXED BY requests_expire "
            "WHERE status = 'QUEUED' AND queue_until <= ? LIMIT 1000",
            [now],
        ).fetchall()
        for row in found:
            seconds = row["queue_until"] - row["created_at"]
            message = (
                f"it waited for more than max_time_in_queue_seconds = {seconds:g}; send it again, "
                "with more, or when the server has less to do"
            )
            ended = Result("EXPIRED", None, None, "", "REQUEST_EXPIRED", message)
            self.end(row["id"], ended, now)
        return len(found)

    def due(
        self,
        *,
        max_requests: int,
        max_per_host: int,
        max_bytes: int,
        now: float,
        but: Collection[str],
    ) -> Sequence[RequestRow]:
        """Return the requests whose webhook is to be delivered now; at least one, if any is.

        Args:
            max_requests: how many at most.
            max_per_host: how many to one host at most, with those of `but`.
            max_bytes: of their results at most.
            now: the time.
            but: those that are being delivered.
        """
        found = self._connection.execute(_DUE, {"now": now, "most": max_per_host})
        chosen: list[RequestRow] = []
        for [request_id] in found.fetchall():
            if request_id in but:
                continue
            row = self.get(request_id)
            max_bytes -= row.num_bytes
            if chosen and max_bytes < 0:
                break
            chosen.append(row)
            if len(chosen) == max_requests:
                break
        return chosen

    def give_up_webhook(self, request_id: str, message: str) -> None:
        """Record that a webhook cannot be delivered; the result stays."""
        self.update(request_id, webhook_status="FAILED", webhook_at=None)
        self._connection.execute(
            "UPDATE requests SET status = 'WEBHOOK_FAILED', error_code = 'WEBHOOK_FAILED', "
            "error_message = ? WHERE id = ? AND status = 'SUCCEEDED'",
            [message, request_id],
        )

    def delete_ended(self, before: float) -> None:
        """Delete the requests that ended before a time and whose webhook waits no more."""
        self._connection.execute(
            "DELETE FROM requests WHERE ended_at <= ? AND webhook_at IS NULL", [before]
        )

    def shrink(self) -> None:
        """Give the disk some room back that nothing in the database needs; in no transaction."""
        # Not `execute`: it takes one step of this statement, which is one page.
        self._connection.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")

    def count(self) -> dict[str, int]:
        """Return how many have not ended, by status."""
        found = self._connection.execute(
            "SELECT status, count(*) FROM requests WHERE status IN ('QUEUED', 'IN_PROGRESS') "
            "GROUP BY status"
        )
        return dict(found.fetchall())

    def count_webhooks(self) -> int:
        """Return how many webhooks are to be delivered."""
        row = self._connection.execute(
            "SELECT count(*) FROM requests WHERE webhook_at IS NOT NULL"
        ).fetchone()
        return int(row[0])
