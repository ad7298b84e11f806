"""Distributes the result of a batch, its rows or an error, to the jobs of its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.batching.packed import PackedTexts
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.twins import Distinct
from embedlib.engines.base import EngineLimits
from embedlib.errors import EngineOutOfMemoryError, EngineRunError
from embedlib.vectors.arrays import Vectors
from embedlib.vectors.sparse import weights_of


def check_shape(vectors: Vectors, sequences: Sequence[TokenizedText], limits: EngineLimits) -> None:
    """Check that an engine's result for a batch has the shape that its limits promise.

    Raises:
        EngineRunError: it has another shape.
    """
    num_rows = len(sequences)
    if limits.is_per_token:
        num_rows = sum(sequence.num_tokens for sequence in sequences)
    expected = (num_rows, limits.embedding_dim)
    if vectors.shape != expected:
        raise EngineRunError(f"the engine returned shape {vectors.shape}, not {expected}")


def resolve(
    sequences: Sequence[TokenizedText],
    vectors: Vectors,
    limits: EngineLimits,
    meter: Meter,
    distinct: Distinct | None = None,
) -> None:
    """Count a computed batch and give its jobs their rows.

    Args:
        sequences: those of the batch.
        vectors: what the engine returned, for the distinct ones.
        limits: of the engine.
        meter: counts.
        distinct: the sequences that were computed; None: all of them.
    """
    computed = sequences if distinct is None else distinct.sequences
    lens = [len(sequence.token_ids) for sequence in computed]
    num_padding = max(lens) * len(lens) - sum(lens)
    num_tokens = sum([len(sequence.token_ids) for sequence in sequences])
    # A twin counts as if it were computed without padding: only padding is read from the two.
    num_computed = num_tokens + (num_padding if limits.is_padded else 0)
    num_texts = sum([sequence.share for sequence in sequences])
    meter.batch_answered(num_texts, num_tokens, num_computed)
    if distinct is not None:
        vectors = distinct.rows_for_all(vectors, is_per_token=limits.is_per_token)
    _resolve_jobs(sequences, vectors, limits, meter.clock())


def resolve_packed(texts: PackedTexts, vectors: Vectors, meter: Meter) -> None:
    """Count computed texts and give their job its rows; one that is not finite fails it."""
    num_tokens = len(texts.token_ids)
    meter.batch_answered(len(texts), num_tokens, num_tokens)
    finite = np.isfinite(vectors)
    if finite.all():
        texts.job.resolve_rows(texts.first_row, vectors, meter.clock())
    else:
        texts.job.fail(_not_finite(texts[int(finite.all(axis=1).argmin())]))


def fail(sequences: Sequence[TokenizedText], error: BaseException, meter: Meter) -> None:
    """Count a failed batch and fail its jobs."""
    meter.batch_failed()
    num_tokens = sum(sequence.num_tokens for sequence in sequences)
    message = (
        f"a batch of {len(sequences)} texts ({num_tokens} tokens) failed: "
        f"{str(error) or type(error).__name__}"
    )
    for job in {sequence.job for sequence in sequences}:
        told = error
        if not isinstance(error, EngineOutOfMemoryError):
            told = EngineRunError(message)  # of its own: a caller may clear its cause and traceback
            told.__cause__ = error
        job.fail(told)


def _resolve_jobs(
    sequences: Sequence[TokenizedText], vectors: Vectors, limits: EngineLimits, now: float
) -> None:
    """Give each job its rows; a row that is not finite fails its job instead."""
    by_job: dict[Job, list[int]] = {}
    for index, sequence in enumerate(sequences):
        by_job.setdefault(sequence.job, []).append(index)
    finite: NDArray[np.bool_] | None = None
    if not np.isfinite(vectors).all():
        finite = np.isfinite(vectors).min(axis=1, initial=True)
    rows: NDArray[Any] = vectors
    if limits.is_per_token:
        rows, finite = _by_sequence(sequences, vectors, finite)
    elif limits.is_sparse:
        rows = _as_objects([weights_of(row) for row in vectors])
    elif any(sequence.share != 1 for sequence in sequences):
        rows = vectors * np.array([[sequence.share] for sequence in sequences], np.float32)
    for job, indices in by_job.items():
        bad = [] if finite is None else [index for index in indices if not finite[index]]
        if bad:
            job.fail(_not_finite(sequences[bad[0]]))
        elif len(by_job) == 1:
            job.resolve(sequences, rows, now)
        elif len(indices) == 1:  # a slice costs less than a list of indices
            index = indices[0]
            job.resolve([sequences[index]], rows[index : index + 1], now)
        else:
            job.resolve([sequences[index] for index in indices], rows[indices], now)


def _by_sequence(
    sequences: Sequence[TokenizedText], vectors: Vectors, finite: NDArray[np.bool_] | None
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Return the per-token vectors of each sequence, and whether they are finite."""
    ends = list(accumulate(sequence.num_tokens for sequence in sequences))
    each = zip(sequences, np.split(vectors, ends[:-1]), strict=True)
    rows = [
        tokens if sequence.returned_rows is None else tokens[sequence.returned_rows]
        for sequence, tokens in each
    ]
    if finite is not None:
        finite = np.logical_and.reduceat(finite, [0, *ends[:-1]])
    return _as_objects(rows), finite


def _as_objects(items: Sequence[Any]) -> NDArray[Any]:
    """Return object[N]; NumPy alone would look into the items."""
    objects = np.empty(len(items), object)
    for index, item in enumerate(items):
        objects[index] = item
    return objects


def _not_finite(sequence: TokenizedText) -> EngineRunError:
    row = sequence.job.message_row(sequence.row)
    return EngineRunError(
        f"the result of row {row} ({sequence.num_tokens} tokens) is not finite; "
        "the weights or the precision do not fit it, nothing was returned"
    )
