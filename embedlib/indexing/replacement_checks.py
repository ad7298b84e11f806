"""What is compared before rows of another model are found by searches instead of those now."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.report import IndexReport
from embedlib.indexing.row_jobs import RowJob
from embedlib.indexing.rows import Row
from embedlib.indexing.seen import Seen
from embedlib.indexing.sinks.protocol import Sink, count_stored
from embedlib.indexing.sinks.replaceable import ReplaceableSink, StoredRow
from embedlib.models.compiled.fidelity_report import Gate
from embedlib.vectors.arrays import Vectors

SAMPLE_ROWS: Final = 32
"""Rows that are embedded again, and whose neighbours are compared."""
NEIGHBOURS: Final = 10
"""Documents near a row that are compared."""
LEAST_COSINE: Final = Gate().p1
"""Of a stored vector and that of the same text embedded again. Batches are divided otherwise then,
which changes the last bits; in a low precision no more than what its gate lets pass."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was found.

    Attributes:
        problem: why the new rows must not be found, and what to do; None: they may.
        num_sampled: rows whose neighbours were compared.
        overlap: share, 0 to 1, of the nearest documents by the old vectors that are among the
            nearest by the new ones; None: there is nothing to compare.
    """

    problem: str | None = None
    num_sampled: int = 0
    overlap: float | None = None


class RowSample:
    """Some rows of a load, as they were read: what is embedded of a row is not stored with it.

    Source: Vitter, Random Sampling with a Reservoir (1985), algorithm R.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._num_rows = 0
        self._dice = random.Random(0)

    def add(self, rows: Sequence[Row]) -> None:
        """Take up some of these rows in place of others."""
        for row in rows:
            self._num_rows += 1
            if len(self.rows) < SAMPLE_ROWS:
                self.rows.append(row)
            elif (place := self._dice.randrange(self._num_rows)) < SAMPLE_ROWS:
                self.rows[place] = row


def compare(
    new: ReplaceableSink,
    old: ReplaceableSink | None,
    embedder: TextEmbedder,
    report: IndexReport,
    max_missing: float,
    sample: Sequence[Row],
) -> Comparison:
    """Compare new rows with what was read, with the model, and with the rows found now.

    Args:
        new: where the new rows are; its load has finished.
        old: where the rows are that searches find; None: there are none.
        embedder: made the new rows.
        report: of the load.
        max_missing: the share, 0 to 1, of the old rows whose documents the new ones may lack.
        sample: of the rows of the load.
    """
    problem = _count(new, report)
    if problem is not None:
        return Comparison(problem=problem)
    with closing(Seen()) as documents:
        for key in new.scan():
            documents.add(key.source_id)
        if old is not None:
            problem = _find_missing(old, documents, max_missing)
    problem = problem or _embed_again(new, sample, embedder)
    if problem is not None or old is None:
        return Comparison(problem=problem)
    shares = _neighbours(new, old, sample)
    overlap = float(np.mean(shares)) if shares else None
    return Comparison(num_sampled=len(shares), overlap=overlap)


def _count(new: Sink, report: IndexReport) -> str | None:
    if report.num_bad:
        rows = "row is" if report.num_bad == 1 else "rows are"
        return (
            f"{report.num_bad} bad {rows} not among them; correct the source, or leave "
            f"{'it' if report.num_bad == 1 else 'them'} out of it, and run again"
        )
    if report.num_rows == 0:
        return "the source has no documents; check the source"
    num_rows = count_stored(new)
    if num_rows != report.num_rows:
        return (
            f"{num_rows:,} rows are stored and the source has {report.num_rows:,}; run again, or "
            "start over with recreate=True (--recreate)"
        )
    return None


def _find_missing(old: Sink, documents: Seen, max_missing: float) -> str | None:
    num_rows = num_missing = 0
    first = ""
    for key in old.scan():
        num_rows += 1
        if not documents.find(key.source_id)[0]:
            num_missing += 1
            first = first or key.source_id
    if num_missing / max(1, num_rows) <= max_missing:
        return None
    return (
        f"{num_missing:,} of the {num_rows:,} rows that searches find are of documents that the "
        f"source does not have, such as {first!r:.80}; name all sources, or pass "
        "delete_missing=True (--delete-missing), which drops them up to the share max_delete "
        "(--max-delete)"
    )


def _embed_again(new: ReplaceableSink, sample: Sequence[Row], embedder: TextEmbedder) -> str | None:
    """Embed some rows again, and compare with what is stored."""
    stored = new.stored_rows([row.id for row in sample])
    num_missing = len({row.id for row in sample} - stored.keys())
    if num_missing:
        return f"{num_missing} of {len(sample)} sampled rows cannot be read; run again"
    vectors = RowJob(sample, embedder, None).result().vectors
    cosines = [
        _cosine(stored[row.id].vector, vector) for row, vector in zip(sample, vectors, strict=True)
    ]
    worst = min(cosines, default=1.0)
    if worst >= LEAST_COSINE:
        return None
    return (
        f"a sampled row has another vector than its text embedded again, with cosine {worst:.4f} "
        f"(at least {LEAST_COSINE} is needed); was it written by another program? Start over with "
        "recreate=True (--recreate)"
    )


def _cosine(stored: Vectors, embedded: Vectors) -> float:
    """Return the cosine of two vectors, or of all vectors of two rows in one."""
    if stored.shape != embedded.shape:
        return 0.0
    first, second = stored.ravel().astype(np.float64), embedded.ravel().astype(np.float64)
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    if lengths == 0.0:
        return float(np.array_equal(first, second))
    return float(first @ second) / lengths


def _neighbours(new: ReplaceableSink, old: ReplaceableSink, sample: Sequence[Row]) -> list[float]:
    """Return for each row the share of its nearest documents that both have."""
    ids = [row.id for row in sample]
    new_rows, old_rows = new.stored_rows(ids), old.stored_rows(ids)
    shares = list[float]()
    for row in sample:
        stored = old_rows.get(row.id)
        if stored is None:
            continue
        before, after = _nearest(old, row, stored), _nearest(new, row, new_rows[row.id])
        if before:
            shares.append(len(before & after) / len(before))
    return shares


def _nearest(sink: Sink, row: Row, stored: StoredRow) -> set[str]:
    """Return the documents nearest to a row, without its own."""
    hits = sink.search(stored.vector, NEIGHBOURS + 1)
    return {hit.source_id for hit in hits} - {row.source_id}
