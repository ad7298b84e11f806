"""Queries that arrive in one turn of the event loop, queued together. Runs on the loop alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import TokenizedText
from embedlib.errors import EmbedlibError


class Gathering:
    """Wakes a model's batch manager once for all queries of a turn.

    Waking it for each costs more than all else that the server does for a query: two threads that
    want the interpreter take it from each other all the time, and most batches have one query.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._waiting: list[TokenizedText] = []

    def add(self, pipeline: Pipeline, sequences: Sequence[TokenizedText]) -> None:
        """Queue the queries of a job when the turn is over; if that fails, so does its future."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._queue, pipeline)
        self._waiting += sequences

    def _queue(self, pipeline: Pipeline) -> None:
        sequences, self._waiting = self._waiting, []
        try:
            pipeline.queue_queries(sequences)
        except EmbedlibError as error:
            for sequence in sequences:
                sequence.job.fail(error)
