"""What is embedded of the rows of a load, and the jobs that do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np

from embedlib.indexing.embedders import SparseEmbedder, TextEmbedder
from embedlib.indexing.rows import Row, Span
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import SparseVector


class Embedded(NamedTuple):
    """What is made of the texts of some rows."""

    vectors: Vectors
    weights: list[SparseVector] | None
    """The sparse vectors; None: there are none."""


class RowJob:
    """The texts of some rows in an embedder, or in each of two."""

    def __init__(
        self, rows: Sequence[Row], embedder: TextEmbedder, sparse: SparseEmbedder | None
    ) -> None:
        """Start to embed rows; all of them or none are late chunks.

        Args:
            rows: at least one.
            embedder: makes the vectors.
            sparse: makes the sparse ones, of the rows' own texts; None: there are none.
        """
        self._is_late = rows[0].span is not None
        self.jobs: list[Future[Any]] = [
            _submit_late(rows, embedder)
            if self._is_late
            else embedder.submit_batch(texts_to_embed(rows), role="document")
        ]
        if sparse is not None:
            texts = [row.text if self._is_late else row.text_to_embed for row in rows]
            self.jobs.append(sparse.submit_batch(texts, role="document", output_value="sparse"))

    def done(self) -> bool:
        """Whether the result is there."""
        return all(job.done() for job in self.jobs)

    def cancel(self) -> None:
        """Drop what has not begun."""
        for job in self.jobs:
            job.cancel()

    def result(self) -> Embedded:
        """Wait for the vectors of the rows, in their order."""
        vectors, *weights = [job.result() for job in self.jobs]
        if self._is_late:
            vectors = np.concatenate(vectors)
        return Embedded(vectors, weights[0] if weights else None)


def texts_to_embed(rows: Sequence[Row]) -> list[str]:
    """Return the texts that are embedded for rows; late chunks that follow each other share one."""
    if rows and rows[0].span is not None:
        return [window for window, _ in _windows(rows)]
    return [row.text_to_embed for row in rows]


def end_of_window(rows: Sequence[Row], end: int) -> int:
    """Return the end of a slice that does not divide the chunks of a window.

    Args:
        rows: in the order of the source.
        end: of the slice, at least 1; it may be moved up.
    """
    while end < len(rows) and rows[end].span and rows[end].embedded == rows[end - 1].embedded:
        end += 1
    return end


def _submit_late(rows: Sequence[Row], embedder: TextEmbedder) -> Future[Any]:
    """Start to embed windows; the result is a list of float32[C, D] of the C rows of each."""
    windows, spans = zip(*_windows(rows), strict=True)
    submit: Callable[..., Future[Any]] = embedder.submit_batch  # of an `Embedder`, see `check_late`
    return submit(windows, role="document", chunks=spans)


def _windows(rows: Sequence[Row]) -> list[tuple[str, list[Span]]]:
    """Return each window with the places of its rows."""
    return [
        (window, [cast(Span, row.span) for row in of_window])
        for window, of_window in groupby(rows, lambda row: row.text_to_embed)
    ]
