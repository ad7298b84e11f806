"""Queries that arrive together, queued together, and answers, fetched together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from embedlib.batching.outcome import Outcome, end
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import TokenizedText

MAX_GATHERED = 16
"""So many queries wait for no more of them: an engine that could start is kept idle meanwhile."""


class Gathering:
    """Wakes a model's batch manager when no more queries arrive, and the loop once for a batch.

    Waking a thread for each costs more than all else that the server does for a query: two threads
    that want the interpreter take it from each other all the time, and most batches have one query.
    So queries are queued after the first turn of the loop that brought no other one: then it has
    nothing to do, and the manager gets the interpreter at once. Runs on the event loop, except
    where it says so.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._waiting: list[TokenizedText] = []
        self._over: deque[asyncio.Future[None]] = deque()
        """Futures of the loop for jobs that are over; any thread appends, the loop empties it."""
        self._is_waking = False
        """Whether the loop was called to empty it."""

    def add(self, pipeline: Pipeline, sequences: Sequence[TokenizedText]) -> None:
        """Queue the queries of a job with others; if that fails, so does its future."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._queue, pipeline, 0)
        self._waiting += sequences

    def _queue(self, pipeline: Pipeline, num_before: int) -> None:
        """Queue what waits, unless more of it came since the turn before."""
        num_waiting = len(self._waiting)
        if num_before < num_waiting < MAX_GATHERED:
            asyncio.get_running_loop().call_soon(self._queue, pipeline, num_waiting)
            return
        sequences, self._waiting = self._waiting, []
        try:
            pipeline.queue_queries(sequences)
        except Exception as error:
            for sequence in sequences:
                sequence.job.fail(error)

    def when_over(self, future: Outcome[Any]) -> asyncio.Future[None]:
        """Return a future of the event loop that is done once another thread's is."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        future.add_done_callback(partial(self._tell, loop, over))
        return over

    def _tell(
        self, loop: asyncio.AbstractEventLoop, over: asyncio.Future[None], _: Outcome[Any]
    ) -> None:
        """Have the loop resolve its future; on the thread that resolved the other one."""
        self._over.append(over)
        if not self._is_waking:
            self._is_waking = True
            loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._is_waking = False  # first: what is appended from now on calls the loop again
        while self._over:
            end(self._over.popleft())
