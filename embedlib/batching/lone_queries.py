"""Runs a query on its caller's thread when no other query is queued or running.

That saves a thread switch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from embedlib.batching.direct import compute_here
from embedlib.batching.sequence import TokenizedText
from embedlib.batching.stats import Meter
from embedlib.engines.base import CallerEngine, Engine, Lane


class LoneQueries:
    """Computes one query at a time, if the engine is a `CallerEngine`. Any thread may call it.

    A query that arrives while another caller computes goes to the batch manager, which batches all
    queries that arrived in the meantime.
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
            if self._is_computing or self._is_closed:
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
        """Call `stop`, and wait until no caller computes."""
        self.stop()
        with self._turn:
            pass
