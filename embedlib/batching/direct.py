"""Batches that are computed on the thread that made them, without the batch manager."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from embedlib.batching.packed import PackedTexts
from embedlib.batching.results import check_shape, fail, resolve, resolve_packed
from embedlib.batching.sequence import TokenizedText, pack
from embedlib.batching.stats import Meter
from embedlib.engines.base import CallerEngine, Engine, Lane
from embedlib.threads.interrupts import is_of_handler


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
        if is_of_handler(error):
            raise
        fail(sequences, error, meter)
    else:
        resolve(sequences, vectors, engine.limits, meter)
    finally:
        meter.batch_over(meter.clock() - started)


def compute_packed(engine: CallerEngine, texts: PackedTexts, lane: Lane, meter: Meter) -> None:
    """Do what `compute_here` does for packed texts; the engine returns a row for each."""
    started = meter.clock()
    texts.job.note_submitted(started)
    meter.batch_submitted((started - texts.queued_at) * len(texts), lane is Lane.QUERY)
    try:
        vectors = engine.compute(texts.batch(lane))
        check_shape(vectors, texts, engine.limits)
    except Exception as error:
        if is_of_handler(error):
            raise
        fail(texts, error, meter)
    else:
        resolve_packed(texts, vectors, meter)
    finally:
        meter.batch_over(meter.clock() - started)


class LoneQueries:
    """Computes one query at a time, if the engine is a `CallerEngine`. Any thread may call it.

    That saves a thread switch where no other query is queued or running. A query that arrives while
    another caller computes goes to the batch manager, which batches all that arrived meanwhile.
    """

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine = engine if isinstance(engine, CallerEngine) else None
        self._meter = meter
        self._turn = threading.RLock()
        """Reentrant: a signal handler that interrupts a query may run a query of its own."""
        self._is_computing = False
        self._is_closed = False

    def compute(self, sequences: Sequence[TokenizedText]) -> bool:
        """Compute a single sequence and resolve its job; False: the batch manager must do it."""
        if self._engine is None or len(sequences) != 1 or self._is_computing:
            return False
        with self._turn:  # Ctrl-C right after a plain `acquire` would leave it locked
            if self._is_closed:
                return False
            self._is_computing = True
            try:
                compute_here(self._engine, sequences, Lane.QUERY, self._meter)
            finally:
                self._is_computing = False
        return True

    def stop(self) -> None:
        """Refuse every query from now on; never blocks."""
        self._is_closed = True

    def close(self) -> None:
        """Wait until no caller computes; `stop` was called."""
        with self._turn:
            pass


class InstantTexts:
    """Computes the texts of an engine whose limits say `is_instant`, where they are tokenized.

    That is the caller's thread for queries and the tokenizer thread for bulk. Sorting sequences and
    handing them over would take longer than computing them, and the two threads would wait for each
    other's turn in Python.
    """

    def __init__(self, engine: CallerEngine, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter
        limits = engine.limits
        self._has_rows_of_texts = not (limits.is_per_token or limits.is_sparse)
        self._budget = limits.max_batch_tokens

    def __call__(self, sequences: Sequence[TokenizedText], lane: Lane = Lane.BULK) -> None:
        """Compute sequences of one job, in their order; leave them out once it is over."""
        if isinstance(sequences, PackedTexts) and self._has_rows_of_texts:
            for part in sequences.parts(self._budget):
                if part.job.is_over:
                    return
                compute_packed(self._engine, part, lane, self._meter)
            return
        for batch in self._batches(sequences):
            if batch[0].job.is_over:
                return
            compute_here(self._engine, batch, lane, self._meter)

    def _batches(self, sequences: Sequence[TokenizedText]) -> Iterator[list[TokenizedText]]:
        batch: list[TokenizedText] = []
        left = self._budget
        for sequence in sequences:
            left -= len(sequence.token_ids)
            if left < 0 and batch:
                yield batch
                batch, left = [], self._budget - len(sequence.token_ids)
            batch.append(sequence)
        if batch:
            yield batch
