"""A dry run: everything a load does, except embedding and writing."""

from __future__ import annotations

import time
from dataclasses import replace

from embedlib.errors import EngineRunError, InputError
from embedlib.indexing.embedders import TextEmbedder
from embedlib.indexing.reader import Group
from embedlib.indexing.report import IndexReport, Tally
from embedlib.indexing.rows import find_changes
from embedlib.indexing.sinks.protocol import Sink

_SAMPLE_ROWS = 256


class DryRun:
    """Counts what a load would embed, and estimates the time by embedding a sample."""

    def __init__(self, embedder: TextEmbedder, sink: Sink, tally: Tally, *, has_rows: bool) -> None:
        """Prepare; `has_rows`: whether the destination holds rows to compare with."""
        self._embedder = embedder
        self._sink = sink
        self._tally = tally
        self._has_rows = has_rows
        self._sample: list[str] = []
        self._num_tokens = 0

    def add(self, group: Group) -> None:
        """Compare and count a group of rows."""
        stored = self._sink.digests([row.id for row in group.rows]) if self._has_rows else {}
        changes = find_changes(group.rows, stored)
        self._tally.add(changes, group.num_documents)
        texts = [row.text for row in changes.to_embed]
        self._sample += texts[: _SAMPLE_ROWS - len(self._sample)]
        limit = self._embedder.max_seq_length
        encoded = self._embedder.tokenizer.encode_batch_fast(texts)
        self._num_tokens += sum(min(len(item), limit) for item in encoded)
        self._tally.done(len(texts), len(texts))

    def report(self, num_bad: int) -> IndexReport:
        """Return what the load would do."""
        report = self._tally.report(num_bad)
        return replace(report, num_tokens=self._num_tokens, estimated_seconds=self._estimate())

    def _estimate(self) -> float | None:
        if not self._sample:
            return None
        before, started = self._embedder.stats().num_tokens, time.perf_counter()
        try:
            self._embedder.submit_batch(self._sample, role="document").result()
        except (InputError, EngineRunError):  # a load skips these rows
            return None
        seconds = time.perf_counter() - started
        num_tokens = self._embedder.stats().num_tokens - before
        return self._num_tokens * seconds / num_tokens if num_tokens else None
