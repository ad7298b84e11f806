"""What a load would do: everything but embedding and writing."""

from __future__ import annotations

import time
from dataclasses import replace

from embedlib.embedder import Embedder
from embedlib.errors import EngineRunError, InputError
from embedlib.indexing.reader import Group
from embedlib.indexing.report import IndexReport, Tally
from embedlib.indexing.sinks.protocol import Sink

_SAMPLE_ROWS = 256


class DryRun:
    """Counts what would be embedded, and how long it would take by a sample of it."""

    def __init__(self, embedder: Embedder, sink: Sink, tally: Tally, *, has_rows: bool) -> None:
        """Prepare; `has_rows` tells whether the destination has rows to compare with."""
        self._embedder = embedder
        self._sink = sink
        self._tally = tally
        self._has_rows = has_rows
        self._sample: list[str] = []
        self._num_tokens = 0

    def add(self, group: Group) -> None:
        """Take rows in."""
        stored = self._sink.digests([row.id for row in group.rows]) if self._has_rows else {}
        changed, _ = self._tally.compare(group.rows, group.num_documents, stored)
        texts = [row.text for row in changed]
        self._sample += texts[: _SAMPLE_ROWS - len(self._sample)]
        limit = self._embedder.max_seq_length
        encoded = self._embedder.tokenizer.encode_batch_fast(texts)
        self._num_tokens += sum(min(len(item), limit) for item in encoded)
        self._tally.done(len(changed), len(changed))

    def report(self, num_bad: int) -> IndexReport:
        """Return what would be done."""
        report = self._tally.report(num_bad)
        return replace(report, num_tokens=self._num_tokens, estimated_seconds=self._estimate())

    def _estimate(self) -> float | None:
        if not self._sample:
            return None
        before, started = self._embedder.stats().num_tokens, time.perf_counter()
        try:
            self._embedder.submit_batch(self._sample, role="document").result()
        except (InputError, EngineRunError):  # a load leaves out what cannot be embedded
            return None
        seconds = time.perf_counter() - started
        return self._num_tokens * seconds / (self._embedder.stats().num_tokens - before)
