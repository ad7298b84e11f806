"""Runs a query on its caller's thread when no other query is queued or running.

That saves a change of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from embedlib.batching.results import check_shape, fail, resolve
from embedlib.batching.sequence import TokenizedText, pack
from embedlib.batching.stats import Meter
from embedlib.engines.base import CallerEngine, Engine, Lane


class LoneQueries:
    """Computes one query at a time, where the engine can do so. Any thread may call it.

    A query that arrives while another caller computes goes to the batch manager, which puts all
    queries that have arrived meanwhile into one batch.
    """

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine = engine if isinstance(engine, CallerEngine) else None
        self._meter = meter
        self._turn = threading.RLock()
        """Taken twice by a thread whose signal handler asks the model something."""
        self._is_computing = False
        self._is_closed = False

    def compute(self, sequences: Sequence[TokenizedText]) -> bool:
        """Compute a text of one sequence and resolve its job; False: the batch manager must."""
        if self._engine is None or len(sequences) != 1 or self._is_computing:
            return False
        with self._turn:  # Ctrl-C right behind an `acquire` would leave it locked
            if self._is_computing or self._is_closed:
                return False
            self._is_computing = True
            try:
                self._compute(self._engine, sequences)
            finally:
                self._is_computing = False
        return True

    def _compute(self, engine: CallerEngine, sequences: Sequence[TokenizedText]) -> None:
        started = self._meter.clock()
        sequences[0].job.note_submitted(started)
        self._meter.batch_submitted(started - sequences[0].queued_at, is_query=True)
        try:
            vectors = engine.compute(pack(sequences, Lane.QUERY))
            check_shape(vectors, sequences, engine.limits)
        except Exception as error:
            fail(sequences, error, self._meter)
        else:
            resolve(sequences, vectors, engine.limits, self._meter)
        finally:
            self._meter.batch_over(self._meter.clock() - started)

    def stop(self) -> None:
        """Refuse every query from now on; never blocks."""
        self._is_closed = True

    def close(self) -> None:
        """Stop, and wait until no caller computes."""
        self.stop()
        with self._turn:
            pass
