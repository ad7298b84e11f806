"""Batches that are computed on the thread that made them, without the batch manager."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from embedlib.batching.results import check_shape, fail, resolve
from embedlib.batching.sequence import TokenizedText, pack
from embedlib.batching.stats import Meter
from embedlib.engines.base import CallerEngine, Lane


def compute_here(
    engine: CallerEngine, sequences: Sequence[TokenizedText], lane: Lane, meter: Meter
) -> None:
    """Compute sequences of one job and give it their rows, or the error."""
    started = meter.clock()
    sequences[0].job.note_submitted(started)
    queued_s = sum([started - sequence.queued_at for sequence in sequences])
    meter.batch_submitted(queued_s, lane is Lane.QUERY)
    try:
        vectors = engine.compute(pack(sequences, lane))
        check_shape(vectors, sequences, engine.limits)
    except Exception as error:
        fail(sequences, error, meter)
    else:
        resolve(sequences, vectors, engine.limits, meter)
    finally:
        meter.batch_over(meter.clock() - started)


class InstantBulk:
    """Computes the bulk of an engine whose limits say `is_instant`, on the tokenizer thread.

    Sorting sequences and handing them over would take longer than computing them, and the two
    threads would wait for each other's turn in Python.
    """

    def __init__(self, engine: CallerEngine, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter

    def __call__(self, sequences: list[TokenizedText]) -> None:
        """Compute sequences of one job, in their order; leave them out once it is over."""
        for batch in self._batches(sequences):
            if batch[0].job.is_over:
                return
            compute_here(self._engine, batch, Lane.BULK, self._meter)

    def _batches(self, sequences: list[TokenizedText]) -> Iterator[list[TokenizedText]]:
        batch: list[TokenizedText] = []
        left = budget = self._engine.limits.max_batch_tokens
        for sequence in sequences:
            left -= len(sequence.token_ids)
            if left < 0 and batch:
                yield batch
                batch, left = [], budget - len(sequence.token_ids)
            batch.append(sequence)
        if batch:
            yield batch
