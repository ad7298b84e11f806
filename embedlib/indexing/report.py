"""Counts of a load: its progress while it runs, and its report at the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.rows import RowChanges


@dataclass(frozen=True, kw_only=True)
class IndexProgress:
    """How far a load has come."""

    num_documents: int
    """Documents whose rows are all stored or skipped."""
    total_documents: int | None
    """Estimated number of documents in the source; None: unknown."""
    num_embedded: int
    """Rows embedded and written."""
    num_unchanged: int
    """Rows that were up to date."""
    num_metadata: int = 0
    """Rows of which only the metadata is written."""
    num_vectors: int = 0
    """Rows embedded, written or not: counted as batches end if the embedder's `stats()` have
    `num_texts`, else as they are written."""
    num_documents_embedded: int = 0
    """Documents whose rows are all embedded or were up to date; about as many, since long and short
    texts are embedded out of order."""
    num_workers: int | None = None
    """Workers of a cluster that are ready; None: the load has none."""
    num_retries: int = 0
    """How often rows were given to another worker, because the first one failed."""
    is_finishing: bool = False
    """Whether every row is written, and the destination is being made ready for search."""


@dataclass(frozen=True, kw_only=True)
class IndexReport:
    """What a load did, or what it would do if it was a dry run."""

    num_documents: int
    """Documents read and divided into rows."""
    num_rows: int
    """Rows made from them, without bad ones: `num_embedded` + `num_unchanged` + `num_metadata`."""
    num_embedded: int
    """Rows embedded and written: new ones, and those whose text or model changed."""
    num_unchanged: int
    """Rows that were up to date; neither embedded nor written."""
    num_metadata: int
    """Rows of which only the metadata was written."""
    num_deleted: int
    """Rows deleted because the source does not contain them any more: surplus chunks of documents
    that became shorter, and with `delete_missing` rows of documents that were not read."""
    num_bad: int
    """Bad rows, which were skipped: of the source, and those that the model cannot embed or the
    destination cannot store."""
    num_truncated: int
    """Texts truncated to the model's length limit; only without chunking. 0 for a dry run."""
    num_tokens: int
    """Tokens embedded."""
    seconds: float
    """Duration of the whole load, including the search index."""
    estimated_seconds: float | None = None
    """Dry run only: how long embedding would take on this machine, measured on a sample. None:
    nothing to embed, or a text of the sample cannot be embedded."""
    num_other: int | None = None
    """Stored rows of documents that were not read; `delete_missing` deletes them. None: not
    counted, in a dry run, with `limit`, and if the source left out what was read before."""
    num_sampled: int = 0
    """Dry run only: how many rows were measured; as many as can be embedded in about a second."""


class Tally:
    """Counts what a load does."""

    def __init__(
        self,
        embedder: TextEmbedder,
        on_progress: Callable[[IndexProgress], None],
        total_documents: int | None,
    ) -> None:
        self.num_deleted = 0
        self.num_other: int | None = None
        self._stats = embedder.stats
        self._before = embedder.stats()
        self._started = time.perf_counter()
        self._on_progress = on_progress
        self._total_documents = total_documents
        self._num_documents = self._num_unchanged = self._num_metadata = 0
        self._num_embedded = self._num_metadata_refused = 0
        # Per group: the number of changed rows after which its documents are complete.
        self._document_ends: deque[tuple[int, int]] = deque()
        self._num_changed = self._num_done = self._num_documents_done = 0
        self._last_end = 0
        self._is_finishing = False

    def add(self, changes: RowChanges, num_documents: int) -> None:
        """Count rows that were compared, and how many documents end with them."""
        self._num_documents += num_documents
        self._num_changed += len(changes.to_embed)
        self._num_unchanged += changes.num_unchanged
        self._num_metadata += len(changes.to_update)
        self._document_ends.append((self._num_changed, num_documents))
        self.done(0, 0)

    def add_loaded(self, part: IndexReport, num_documents: int) -> None:
        """Count rows that a worker has compared, embedded and written."""
        self._num_documents += num_documents
        num_rows = part.num_embedded + part.num_bad
        self._num_changed += num_rows
        self._num_unchanged += part.num_unchanged
        self._num_metadata += part.num_metadata
        self._document_ends.append((self._num_changed, num_documents))
        self.done(num_rows, part.num_embedded)

    def done(self, num_rows: int, num_embedded: int) -> None:
        """Count changed rows that are finished, and how many of them were written."""
        self._num_done += num_rows
        self._num_embedded += num_embedded
        while self._document_ends and self._document_ends[0][0] <= self._num_done:
            self._last_end, num_documents = self._document_ends.popleft()
            self._num_documents_done += num_documents
        self.look()

    def refused_metadata(self, num_rows: int) -> None:
        """Count rows whose metadata the destination cannot store; they stay as they were."""
        self._num_metadata_refused += num_rows

    def finishing(self) -> None:
        """Tell that every row is written."""
        self._is_finishing = True
        self.look()

    def look(self) -> None:
        """Tell how far the load is, with what is embedded and not yet written."""
        stats = self._stats()
        before: int = getattr(self._before, "num_texts", 0)
        num_vectors = getattr(stats, "num_texts", before) - before
        num_retries: int = getattr(self._before, "num_retries", 0)
        # Rows that were skipped as bad are done and not embedded.
        num_ahead = max(0, num_vectors - self._num_embedded)
        self._on_progress(
            IndexProgress(
                num_documents=self._num_documents_done,
                total_documents=self._total_documents,
                num_embedded=self._num_embedded,
                num_unchanged=self._num_unchanged,
                num_metadata=self._num_metadata,
                num_vectors=self._num_embedded + num_ahead,
                num_documents_embedded=self._count_documents(self._num_done + num_ahead),
                num_workers=getattr(stats, "num_workers", None),
                num_retries=getattr(stats, "num_retries", 0) - num_retries,
                is_finishing=self._is_finishing,
            )
        )

    @property
    def num_stored(self) -> int:
        """Rows of the source that are in the destination now."""
        return self._num_unchanged + self._num_metadata + self._num_embedded

    def _count_documents(self, num_rows: int) -> int:
        """Return how many documents these changed rows are, by the share of the last group."""
        num_documents, begin = self._num_documents_done, self._last_end
        for end, num_of_group in self._document_ends:
            if end > num_rows:
                return num_documents + num_of_group * (num_rows - begin) // (end - begin)
            num_documents, begin = num_documents + num_of_group, end
        return num_documents

    def report(self, num_bad: int) -> IndexReport:
        """Return what was done."""
        stats = self._stats()
        num_metadata = self._num_metadata - self._num_metadata_refused
        return IndexReport(
            num_documents=self._num_documents,
            num_rows=self._num_embedded + self._num_unchanged + num_metadata,
            num_embedded=self._num_embedded,
            num_unchanged=self._num_unchanged,
            num_metadata=num_metadata,
            num_deleted=self.num_deleted,
            num_bad=num_bad,
            num_truncated=stats.num_truncated - self._before.num_truncated,
            num_tokens=stats.num_tokens - self._before.num_tokens,
            seconds=time.perf_counter() - self._started,
            num_other=self.num_other,
        )
