"""Which sequences are computed together, and when: pure policy, no thread, no clock.

Queries go first, bulk fills what is left. A batch is cut by token budget, never by a timer: an idle
engine gets whatever is waiting at once, a busy one lets the next batch grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.sequence import TokenizedText
from embedlib.engines.base import EngineLimits, Lane


class Scheduler:
    """Cuts waiting sequences into batches. Owned by one thread."""

    def __init__(self, limits: EngineLimits, policy: BatchingPolicy = DEFAULT_POLICY) -> None:
        self.limits = limits
        self._policy = policy
        self._queries: deque[TokenizedText] = deque()
        self._bulk: deque[TokenizedText] = deque()
        self._window: list[TokenizedText] = []
        """Bulk sequences being cut into batches, longest last."""
        self._num_admitted = 0
        """Sequences the present window has taken in; it is refilled only up to
        `window_seqs`, so that short texts are not overtaken for ever."""
        self._retries: dict[Lane, deque[list[TokenizedText]]] = {lane: deque() for lane in Lane}
        self._query_streak = 0

    def add(self, sequences: Iterable[TokenizedText]) -> None:
        """Add the sequences of a call, each to the lane of its job.

        Queries of one call are answered together, so each goes next to those of its length.
        """
        queries: list[TokenizedText] = []
        for sequence in sequences:
            (queries if sequence.job.lane is Lane.QUERY else self._bulk).append(sequence)
        self._queries += sorted(queries, key=lambda query: query.num_tokens, reverse=True)

    def num_waiting(self, lane: Lane) -> int:
        """Sequences of a lane not handed out yet."""
        if lane is Lane.QUERY:
            return len(self._queries)
        return len(self._bulk) + len(self._window)

    def retry(self, sequences: list[TokenizedText]) -> None:
        """Put back a batch that did not fit, in two halves that are not joined again."""
        middle = len(sequences) // 2
        self._retries[sequences[0].job.lane] += (sequences[:middle], sequences[middle:])

    def drop_cancelled_queries(self) -> None:
        """Drop queries whose jobs are over: in a full queue they would take the room of others."""
        self._queries = deque(query for query in self._queries if not query.job.is_over)

    def clear(self) -> list[TokenizedText]:
        """Remove everything that waits and return it."""
        waiting = [*self._queries, *self._bulk, *self._window]
        for queue in (self._queries, self._bulk, self._window):
            queue.clear()
        for batches in self._retries.values():
            waiting += [sequence for batch in batches for sequence in batch]
            batches.clear()
        return waiting

    def next_batch(self, num_queries: int, num_bulk: int) -> list[TokenizedText]:
        """Return the sequences to compute next, of one lane; empty: nothing fits or nothing waits.

        Args:
            num_queries: query batches in flight.
            num_bulk: bulk batches in flight.
        """
        if num_queries + num_bulk >= self.limits.max_inflight_batches:
            return []
        bulk_starves = self._query_streak >= self._policy.max_query_streak and num_bulk == 0
        if not bulk_starves:
            batch = self._cut_queries()
            if batch:
                self._query_streak = self._query_streak + 1 if num_bulk == 0 else 0
                return batch
        self._query_streak = 0
        if num_bulk < self.limits.max_inflight_bulk:
            batch = self._cut_bulk(self.limits.num_parallel_batches - num_bulk)
            if batch:
                return batch
        return self._cut_queries() if bulk_starves else []

    def engine_lane_for(self, batch: list[TokenizedText], num_inflight: int) -> Lane:
        """Return the lane that the engine computes a batch on, once it was cut.

        That is the lane of its job, with one exception: a few bulk tokens alone would leave all
        streams but one idle, so the engine computes them as a query, on all cores.

        Args:
            batch: its sequences.
            num_inflight: batches in flight beside it.
        """
        lane = batch[0].job.lane
        if num_inflight or self.num_waiting(Lane.BULK):
            return lane
        is_shared = self._is_shared(sum(sequence.num_tokens for sequence in batch))
        return Lane.QUERY if is_shared else lane

    def _is_shared(self, num_tokens: int) -> bool:
        """Whether a batch of this size is computed by all streams together."""
        num_streams = self.limits.num_parallel_batches
        return num_streams > 1 and num_tokens <= self._policy.min_split_tokens * num_streams

    def _retry(self, lane: Lane) -> list[TokenizedText]:
        """The next half of a batch that did not fit."""
        while self._retries[lane]:
            batch = [item for item in self._retries[lane].popleft() if not item.job.is_over]
            if batch:
                return batch
        return []

    def _cut_queries(self) -> list[TokenizedText]:
        """First call, first served, up to the token budget."""
        if batch := self._retry(Lane.QUERY):
            return batch
        cut = self._cut(self.limits.max_batch_tokens)
        while self._queries and cut.try_add(self._queries[0]):
            self._queries.popleft()
        return cut.sequences

    def _cut_bulk(self, num_idle: int) -> list[TokenizedText]:
        """Longest first out of the window, up to the budget or a fair share for idle streams."""
        if batch := self._retry(Lane.BULK):
            return batch
        while self._window or self._bulk:  # all jobs of a window may be over
            self._refill()
            if batch := self._cut_window(num_idle):
                return batch
        return []

    def _cut_window(self, num_idle: int) -> list[TokenizedText]:
        """A batch of the window; empty: all its jobs were over, and the window is empty too."""
        budget = self.limits.max_batch_tokens
        if num_idle > 1 and not self._bulk:
            waiting = sum(sequence.num_tokens for sequence in self._window)
            if not self._is_shared(waiting):
                budget = min(budget, max(-(-waiting // num_idle), self._policy.min_split_tokens))
        cut = self._cut(budget)
        while self._window and cut.try_add(self._window[-1], num_alike=len(self._window)):
            self._window.pop()
        return cut.sequences

    def _cut(self, budget: int) -> _Cut:
        """An empty batch with a token budget."""
        return _Cut(budget, self._policy.max_batch_padding_tokens, self.limits.is_padded)

    def _refill(self) -> None:
        """Sort newly arrived sequences into the window."""
        if not self._window:
            self._num_admitted = 0
        num_new = min(self._policy.window_seqs - self._num_admitted, len(self._bulk))
        if num_new:
            self._num_admitted += num_new
            self._window += [self._bulk.popleft() for _ in range(num_new)]
            self._window.sort(key=lambda sequence: sequence.num_tokens)


class _Cut:
    """A batch being filled up to its token budget."""

    def __init__(self, budget: int, max_padding: int, is_padded: bool) -> None:
        self.sequences: list[TokenizedText] = []
        self._budget = budget
        self._max_padding = max_padding
        self._is_padded = is_padded
        self._longest = 0
        self._num_tokens = 0

    def try_add(self, sequence: TokenizedText, num_alike: int = 1) -> bool:
        """Add a sequence, or drop it if its job is over; False: the batch is full.

        Args:
            sequence: the next one.
            num_alike: sequences no longer than it, it included, that would follow it.
        """
        if sequence.job.is_over:
            return True
        longest = max(self._longest, sequence.num_tokens)
        num_tokens = self._num_tokens + sequence.num_tokens
        if self.sequences:  # the first one always goes, however long
            cost = longest * (len(self.sequences) + 1) if self._is_padded else num_tokens
            if cost > self._budget:
                return False
            if self._is_padded and self._padding(sequence, num_alike) > self._max_padding:
                return False
        self.sequences.append(sequence)
        self._longest, self._num_tokens = longest, num_tokens
        return True

    def _padding(self, sequence: TokenizedText, num_alike: int) -> int:
        """Tokens of padding that a new batch, begun with this sequence, would avoid."""
        longer = sequence.num_tokens - self._longest
        if longer > 0:
            return longer * len(self.sequences)
        room = self._budget // self._longest - len(self.sequences)
        return -longer * min(room, num_alike)
