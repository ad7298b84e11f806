"""A query that is alone is computed on the thread of its caller: no other one has to wake up."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from embedlib.batching.answers import answer, check_shape, fail
from embedlib.batching.sequence import TokenizedText, pack
from embedlib.batching.stats import Meter
from embedlib.engines.base import CallerEngine, Engine, Lane


class LoneQueries:
    """Computes one query at a time, where the engine can do so. Any thread may call it.

    Whoever comes while another caller computes goes to the batch manager, which puts together what
    has come meanwhile.
    """

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine = engine if isinstance(engine, CallerEngine) else None
        self._meter = meter
        self._turn = threading.RLock()
        """Taken twice by a thread whose signal handler closes the model, or asks it something."""
        self._is_computing = False
        self._is_closed = False

    def compute(self, sequences: Sequence[TokenizedText]) -> bool:
        """Compute a text of one sequence and answer its job; False: it must go another way."""
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
        self._meter.batch_submitted(started - sequences[0].queued_at, is_query=True)
        try:
            vectors = engine.compute(pack(sequences, Lane.QUERY))
            check_shape(vectors, sequences, engine.limits)
        except Exception as error:
            fail(sequences, error, self._meter)
        else:
            answer(sequences, vectors, engine.limits, self._meter)
        finally:
            self._meter.batch_over(self._meter.clock() - started)

    def close(self) -> None:
        """Compute nothing from now on, and wait for who does."""
        self._is_closed = True
        with self._turn:
            pass
