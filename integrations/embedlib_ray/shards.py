"""Rows cut into shards: pieces that a worker takes as a whole, the same in every run."""

from __future__ import annotations

from dataclasses import dataclass, field

from embedlib.indexing import Row
from embedlib.indexing.workers import end_of_window

FIRST_ROWS = 16
MAX_ROWS = 512
"""Of a shard: large enough that its way through the cluster costs little, and small enough that two
of them beside each other fit what a kill may cost."""
ROUNDS = 2
"""Shards of a size before it doubles: the first rows are stored soon, also of a slow model."""
WAITING_SHARDS = 4
"""Shards of each worker on their way: two in it, and two that it takes next."""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Rows that follow each other in the source.

    Attributes:
        number: from 0.
        rows: at least one.
        num_documents: how many documents are counted with it.
    """

    number: int
    rows: list[Row]
    num_documents: int

    def __str__(self) -> str:
        """Return which rows these are, for a message."""
        first, last = self.rows[0], self.rows[-1]
        if first.source_id == last.source_id:
            return f"shard {self.number} (document {first.source_id!r})"
        return f"shard {self.number} (documents {first.source_id!r} to {last.source_id!r})"


def shard_rows(number: int, batch_rows: int) -> int:
    """Return how many rows a shard has; only the last one has fewer.

    Of late chunking it may have more: a shard has whole windows, which are embedded at once.

    Args:
        number: of the shard, from 0.
        batch_rows: the most rows of a worker that are on their way.
    """
    limit = max(1, min(MAX_ROWS, batch_rows // WAITING_SHARDS))
    doublings = min(number // ROUNDS, MAX_ROWS.bit_length())
    return min(limit, FIRST_ROWS << doublings)


@dataclass
class ShardCutter:
    """Cuts the rows of a source, whatever groups they come in."""

    batch_rows: int
    _rows: list[Row] = field(default_factory=list)
    _num_documents: int = 0
    _next: int = 0

    def add(self, rows: list[Row], num_documents: int) -> list[Shard]:
        """Take rows and how many documents end with them; return the shards that are full."""
        self._rows += rows
        self._num_documents += num_documents
        shards = []
        while len(self._rows) >= (num_rows := shard_rows(self._next, self.batch_rows)):
            end = end_of_window(self._rows, num_rows)
            if end == len(self._rows) and self._rows[-1].span:
                break  # the window may go on with the next rows
            shards.append(self._cut(end))
        return shards

    def end(self) -> list[Shard]:
        """Return the last shard, if rows are left."""
        return [self._cut(len(self._rows))] if self._rows else []

    def _cut(self, num_rows: int) -> Shard:
        rows, self._rows = self._rows[:num_rows], self._rows[num_rows:]
        num_documents, self._num_documents = self._num_documents, 0
        self._next += 1
        return Shard(number=self._next - 1, rows=rows, num_documents=num_documents)
