"""A dry run: everything a load does, except embedding and writing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from embedlib.errors import EngineRunError, InputError
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.reader import Group
from embedlib.indexing.report import IndexReport, Tally
from embedlib.indexing.row_jobs import texts_to_embed
from embedlib.indexing.rows import find_changes
from embedlib.indexing.sinks.protocol import Sink
from embedlib.indexing.sinks.thread import SinkThread

_SAMPLE_ROWS = 255
"""Parts of 1, 2, 4 and so on up to 128 rows: each shows how long the next one will take, and the
largest is a fair batch."""
_SAMPLE_SECONDS = 1.0
"""No part begins after this time; since each takes about as long as all before it together, the
sample takes about two seconds, or that of a single row."""


class DryRun:
    """Counts what a load would embed, and estimates the time by embedding a sample."""

    def __init__(
        self,
        embedder: TextEmbedder,
        sink: Sink,
        thread: SinkThread,
        tally: Tally,
        *,
        has_rows: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Prepare.

        Args:
            embedder: embeds the sample.
            sink: the destination.
            thread: makes the calls to it.
            tally: counts.
            has_rows: whether the destination holds rows to compare with.
            clock: returns seconds.
        """
        self._clock = clock
        self._embedder = embedder
        self._sink = sink
        self._thread = thread
        self._tally = tally
        self._has_rows = has_rows
        self._sample: list[str] = []
        self._num_tokens = 0

    def add(self, group: Group) -> None:
        """Compare and count a group of rows."""
        changes = find_changes(group.rows, self._stored(group) if self._has_rows else {})
        self._tally.add(changes, group.num_documents)
        texts = texts_to_embed(changes.to_embed)
        self._sample += texts[: _SAMPLE_ROWS - len(self._sample)]
        limit = self._embedder.max_seq_length
        encoded = self._embedder.tokenizer.encode_batch_fast(texts)
        self._num_tokens += sum(min(len(item), limit) for item in encoded)
        self._tally.done(len(changes.to_embed), len(changes.to_embed))

    def _stored(self, group: Group) -> dict[UUID, bytes]:
        return self._thread.submit(self._sink.digests, [row.id for row in group.rows]).result()

    def report(self, num_bad: int) -> IndexReport:
        """Return what the load would do."""
        seconds, num_rows = self._estimate()
        return replace(
            self._tally.report(num_bad),
            num_tokens=self._num_tokens,
            estimated_seconds=seconds,
            num_sampled=num_rows,
        )

    def _estimate(self) -> tuple[float | None, int]:
        """Return how long embedding would take, and the number of rows that were measured."""
        started, first, size = self._clock(), 0, 1
        num_rows, seconds_per_token = 0, 0.0
        while first < len(self._sample) and self._clock() - started < _SAMPLE_SECONDS:
            part = self._sample[first : first + size]
            try:
                measured = self._measure(part)
            except (InputError, EngineRunError):  # a load skips these rows
                return None, 0
            if measured is None:
                return None, 0
            if len(part) > num_rows:
                num_rows, seconds_per_token = len(part), measured
            first, size = first + size, 2 * size
        return (self._num_tokens * seconds_per_token, num_rows) if num_rows else (None, 0)

    def _measure(self, texts: list[str]) -> float | None:
        """Return the seconds per token of embedding texts; None: the embedder counts no tokens."""
        before, started = self._embedder.stats().num_tokens, self._clock()
        self._embedder.submit_batch(texts, role="document").result()
        num_tokens = self._embedder.stats().num_tokens - before
        return (self._clock() - started) / num_tokens if num_tokens else None
