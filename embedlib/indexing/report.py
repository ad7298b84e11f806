"""What a load has done: its progress while it runs, its report at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from embedlib.embedder import Embedder
from embedlib.indexing.rows import Row, has_same_content


@dataclass(frozen=True, kw_only=True)
class IndexProgress:
    """How far a load is."""

    num_documents: int
    """Documents whose rows are all in the destination or left out."""
    total_documents: int | None
    """Documents in the source, an estimate; None: not known."""
    num_embedded: int
    """Rows embedded and written."""
    num_unchanged: int
    """Rows that were right already."""


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What a load did; of a dry run, what it would have done."""

    num_documents: int
    """Documents read, bad ones not counted."""
    num_rows: int
    """Rows made of them."""
    num_embedded: int
    """Rows embedded and written: new ones, and those whose text or model changed."""
    num_unchanged: int
    """Rows that were right already; neither embedded nor written."""
    num_metadata: int
    """Rows whose metadata alone was written."""
    num_deleted: int
    """Rows removed because the source has them no more."""
    num_bad: int
    """Rows of the source that were left out."""
    num_truncated: int
    """Texts cut at the model's limit; only without chunking. 0 of a dry run."""
    num_tokens: int
    """Tokens embedded."""
    seconds: float
    """From the first to the last moment, the search index included."""
    estimated_seconds: float | None = None
    """Of a dry run: how long embedding would take here, by a sample; None: nothing to embed, or
    a text of the sample cannot be."""


class Tally:
    """Counts what a load does."""

    def __init__(
        self,
        embedder: Embedder,
        on_progress: Callable[[IndexProgress], None],
        total_documents: int | None,
    ) -> None:
        self.num_deleted = 0
        self._stats = embedder.stats
        self._before = embedder.stats()
        self._started = time.perf_counter()
        self._on_progress = on_progress
        self._total_documents = total_documents
        self._num_documents = self._num_rows = self._num_unchanged = self._num_metadata = 0
        self._num_embedded = 0
        # A document is done when so many of the changed rows are.
        self._document_ends: deque[tuple[int, int]] = deque()
        self._num_changed = self._num_done = self._num_documents_done = 0

    def compare(
        self, rows: Sequence[Row], num_documents: int, stored: Mapping[UUID, bytes]
    ) -> tuple[list[Row], list[Row]]:
        """Tell rows to embed and rows that need new metadata only from those that are right.

        Args:
            rows: read from the source.
            num_documents: how many documents end with them.
            stored: the digests that the destination has of them.
        """
        changed, metadata = list[Row](), list[Row]()
        for row in rows:
            digest = stored.get(row.id)
            if digest is None or not has_same_content(digest, row.digest):
                changed.append(row)
            elif digest != row.digest:
                metadata.append(row)
        self._num_documents += num_documents
        self._num_rows += len(rows)
        self._num_unchanged += len(rows) - len(changed) - len(metadata)
        self._num_metadata += len(metadata)
        self._num_changed += len(changed)
        self._document_ends.append((self._num_changed, num_documents))
        self.done(0, 0)
        return changed, metadata

    def done(self, num_rows: int, num_embedded: int) -> None:
        """Count changed rows that are dealt with, and how many of them were written."""
        self._num_done += num_rows
        self._num_embedded += num_embedded
        while self._document_ends and self._document_ends[0][0] <= self._num_done:
            self._num_documents_done += self._document_ends.popleft()[1]
        self._on_progress(
            IndexProgress(
                num_documents=self._num_documents_done,
                total_documents=self._total_documents,
                num_embedded=self._num_embedded,
                num_unchanged=self._num_unchanged,
            )
        )

    def report(self, num_bad: int) -> IndexReport:
        """Return what was done."""
        stats = self._stats()
        return IndexReport(
            num_documents=self._num_documents,
            num_rows=self._num_rows,
            num_embedded=self._num_embedded,
            num_unchanged=self._num_unchanged,
            num_metadata=self._num_metadata,
            num_deleted=self.num_deleted,
            num_bad=num_bad,
            num_truncated=stats.num_truncated - self._before.num_truncated,
            num_tokens=stats.num_tokens - self._before.num_tokens,
            seconds=time.perf_counter() - self._started,
        )
