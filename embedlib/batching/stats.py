"""Totals of a model: counts and times, safe to read from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Totals since the model was loaded.

    Times are sums: over texts for `queue_ms`, over micro-batches for `tokenize_ms`, over batches
    for `engine_ms`, which exceeds the wall clock when batches run side by side.
    """

    num_texts: int
    """Texts answered; a text that was divided into windows counts once."""
    num_tokens: int
    """Tokens of those texts, special tokens included, padding excluded."""
    num_truncated: int
    """Texts that were truncated."""
    num_batches: int
    num_query_batches: int
    """How many of those were of the query lane."""
    num_failed_batches: int
    tokenize_ms: float
    queue_ms: float
    """From tokenized to submitted."""
    engine_ms: float
    """From submitted to computed."""
    engine_idle_share: float
    """Share of the time with open calls in which the engine had no batch, 0 to 1. High: tokenizing
    or a slow consumer of `encode_stream` starves the engine."""
    padding_share: float
    """Share of computed tokens that were padding, 0 to 1."""
    profile: str = ""
    """How the engine computes, and whether it was tuned; empty: the engine has no choice."""


class Meter:
    """Collects `Stats`; every method holds the lock for a few additions only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        # Reentrant: the garbage collector may run in any method and end a dropped stream's jobs.
        self._lock = threading.RLock()
        self._num_texts = 0.0
        self._num_tokens = self._num_truncated = 0
        self._num_batches = self._num_query_batches = self._num_failed_batches = 0
        self._tokenize_s = self._queue_s = self._engine_s = 0.0
        self._num_computed_tokens = 0
        # Integrals over time: with an open job, and of that without a batch in flight.
        self._num_jobs = self._num_inflight = 0
        self._changed_at = 0.0
        self._open_s = self._idle_s = 0.0

    def _advance(self) -> None:
        now = self.clock()
        if self._num_jobs:
            self._open_s += now - self._changed_at
            if not self._num_inflight:
                self._idle_s += now - self._changed_at
        self._changed_at = now

    def job_opened(self) -> None:
        """Count a job that was opened."""
        with self._lock:
            self._advance()
            self._num_jobs += 1

    def job_over(self) -> None:
        """Count a job that was resolved, failed or cancelled."""
        with self._lock:
            self._advance()
            self._num_jobs -= 1

    def tokenized(self, seconds: float, num_truncated: int) -> None:
        """Count a tokenized micro-batch."""
        with self._lock:
            self._tokenize_s += seconds
            self._num_truncated += num_truncated

    def batch_submitted(self, queued_s: float, is_query: bool) -> None:
        """Count a submitted batch; `queued_s` is the queue time summed over its sequences."""
        with self._lock:
            self._advance()
            self._num_inflight += 1
            self._queue_s += queued_s
            self._num_batches += 1
            self._num_query_batches += is_query

    def batch_over(self, seconds: float) -> None:
        """Count a batch that the engine has finished, with vectors or with an error."""
        with self._lock:
            self._advance()
            self._num_inflight -= 1
            self._engine_s += seconds

    def batch_answered(self, num_texts: float, num_tokens: int, num_computed_tokens: int) -> None:
        """Count the vectors of a batch; a window counts as its share of a text."""
        with self._lock:
            self._num_texts += num_texts
            self._num_tokens += num_tokens
            self._num_computed_tokens += num_computed_tokens

    def batch_failed(self) -> None:
        """Count a failed batch."""
        with self._lock:
            self._num_failed_batches += 1

    def read(self) -> Stats:
        """Return the totals so far."""
        with self._lock:
            self._advance()
            computed = self._num_computed_tokens
            return Stats(
                num_texts=round(self._num_texts),
                num_tokens=self._num_tokens,
                num_truncated=self._num_truncated,
                num_batches=self._num_batches,
                num_query_batches=self._num_query_batches,
                num_failed_batches=self._num_failed_batches,
                tokenize_ms=self._tokenize_s * 1e3,
                queue_ms=self._queue_s * 1e3,
                engine_ms=self._engine_s * 1e3,
                engine_idle_share=self._idle_s / self._open_s if self._open_s else 0.0,
                padding_share=1 - self._num_tokens / computed if computed else 0.0,
            )
