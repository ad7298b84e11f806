"""Which sequences are computed together, and when: pure policy, no thread, no clock.

Queries go first, bulk fills what is left. A batch is closed by its token budget, never by a timer:
an idle engine gets whatever is queued at once, a busy one lets the next batch grow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from itertools import islice, takewhile

from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.sequence import TokenizedText
from embedlib.batching.twins import identity
from embedlib.engines.base import EngineLimits, Lane


class Scheduler:
    """Divides queued sequences into batches. Owned by one thread.

    Sequences leave a queue once their batch is made: a MemoryError on the way loses none.
    """

    def __init__(self, limits: EngineLimits, policy: BatchingPolicy = DEFAULT_POLICY) -> None:
        self.limits = limits
        self._policy = policy
        self._queries: deque[TokenizedText] = deque()
        self._bulk: deque[TokenizedText] = deque()
        self._window: list[TokenizedText] = []
        """Bulk sequences being divided into batches, longest last."""
        self._num_admitted = 0
        """Sequences that the current window has taken; it is refilled only up to `window_seqs`, so
        that short texts are not overtaken for ever."""
        self._retries: dict[Lane, deque[list[TokenizedText]]] = {lane: deque() for lane in Lane}
        self._query_streak = 0
        """Query batches in a row since the last look for bulk, with none of bulk in flight."""

    def add(self, sequences: Iterable[TokenizedText]) -> None:
        """Add the sequences of a call, each to the lane of its job.

        Queries of one call are answered together, so they are sorted by length.
        """
        queries: list[TokenizedText] = []
        for sequence in sequences:
            (queries if sequence.job.lane is Lane.QUERY else self._bulk).append(sequence)
        self._queries += sorted(queries, key=lambda query: len(query.token_ids), reverse=True)

    def num_waiting(self, lane: Lane) -> int:
        """Return the number of queued sequences of a lane, without retries."""
        if lane is Lane.QUERY:
            return len(self._queries)
        return len(self._bulk) + len(self._window)

    def retry(self, sequences: list[TokenizedText]) -> None:
        """Queue again a batch that ran out of memory, as two batches of half its sequences."""
        middle = len(sequences) // 2
        self._retries[sequences[0].job.lane] += (sequences[:middle], sequences[middle:])

    def drop_cancelled_queries(self) -> None:
        """Drop queries whose jobs are over, since they would fill the queue."""
        self._queries = deque(query for query in self._queries if not query.job.is_over)

    def clear(self) -> list[TokenizedText]:
        """Remove all queued sequences and return them."""
        waiting = [*self._queries, *self._bulk, *self._window]
        for queue in (self._queries, self._bulk, self._window):
            queue.clear()
        for batches in self._retries.values():
            waiting += [sequence for batch in batches for sequence in batch]
            batches.clear()
        return waiting

    def next_batch(self, num_queries: int, num_bulk: int) -> list[TokenizedText]:
        """Return the sequences of the next batch, all of one lane; empty: none can start now.

        Args:
            num_queries: query batches in flight.
            num_bulk: bulk batches in flight.
        """
        if num_queries + num_bulk >= self.limits.max_inflight_batches:
            return []
        bulk_starves = self._query_streak >= self._policy.max_query_streak
        may_query = num_queries < self.limits.max_inflight_queries
        if may_query and not bulk_starves:
            batch = self._take_queries()
            if batch:
                self._query_streak = self._query_streak + 1 if num_bulk == 0 else 0
                return batch
        self._query_streak = 0
        if num_bulk < self.limits.max_inflight_bulk:
            batch = self._take_bulk(self.limits.num_parallel_batches - num_bulk)
            if batch:
                return batch
        return self._take_queries() if may_query and bulk_starves else []

    def engine_lane_for(self, batch: list[TokenizedText], num_inflight: int) -> Lane:
        """Return the lane that the engine computes a batch on.

        That is the lane of its job, with one exception: a small bulk batch alone would use only one
        of the engine's parallel batches, so the engine computes it as a query, on all cores.

        Args:
            batch: its sequences, as `next_batch` returned them.
            num_inflight: batches in flight beside it.
        """
        lane = batch[0].job.lane
        if num_inflight or self.num_waiting(Lane.BULK):
            return lane
        is_shared = self._is_shared(sum(sequence.num_tokens for sequence in batch))
        return Lane.QUERY if is_shared else lane

    def _is_shared(self, num_tokens: int) -> bool:
        """Whether a job of this size is too small to be split into parallel batches."""
        num_parallel = self.limits.num_parallel_batches
        return num_parallel > 1 and num_tokens <= self._policy.min_split_tokens * num_parallel

    def _retry(self, lane: Lane) -> list[TokenizedText]:
        """Return the next half of a batch that ran out of memory."""
        while self._retries[lane]:
            batch = [item for item in self._retries[lane][0] if not item.job.is_over]
            self._retries[lane].popleft()
            if batch:
                return batch
        return []

    def _take_queries(self) -> list[TokenizedText]:
        """Return the oldest queries, up to the token budget."""
        if retried := self._retry(Lane.QUERY):
            return retried
        if not self._queries:
            return []
        batch = self._open_batch(self.limits.max_batch_tokens)
        for _ in range(sum(1 for _ in takewhile(batch.try_add, self._queries))):
            self._queries.popleft()
        return batch.sequences

    def _take_bulk(self, num_idle: int) -> list[TokenizedText]:
        """Return the longest sequences of the window, up to the budget or an even share.

        Args:
            num_idle: parallel batches that the engine could start now; they share what is left.
        """
        if batch := self._retry(Lane.BULK):
            return batch
        while self._window or self._bulk:  # a window whose jobs are all over gives no batch
            self._refill()
            if batch := self._take_from_window(num_idle):
                return batch
        return []

    def _take_from_window(self, num_idle: int) -> list[TokenizedText]:
        """Return a batch of the window; empty if all jobs were over, and then the window is too."""
        budget = self.limits.max_batch_tokens
        if num_idle > 1 and not self._bulk:
            waiting = sum(sequence.num_tokens for sequence in self._window)
            if not self._is_shared(waiting):
                budget = min(budget, max(-(-waiting // num_idle), self._policy.min_split_tokens))
        batch = self._open_batch(budget)
        num_left = len(self._window)
        while num_left and batch.try_add(self._window[num_left - 1], num_alike=num_left):
            num_left -= 1
        del self._window[num_left:]
        return batch.sequences

    def _open_batch(self, budget: int) -> _OpenBatch:
        """Return an empty batch with a token budget."""
        return _OpenBatch(budget, self.limits.max_padding_tokens, self.limits.is_padded)

    def _refill(self) -> None:
        """Move bulk sequences into the window and sort it."""
        if not self._window:
            self._num_admitted = 0
        num_new = min(self._policy.window_seqs - self._num_admitted, len(self._bulk))
        if num_new:
            self._num_admitted += num_new
            self._window += list(islice(self._bulk, num_new))
            for _ in range(num_new):
                self._bulk.popleft()
            # Twins come next to one another, and so into one batch.
            self._window.sort(key=lambda sequence: (sequence.num_tokens, sequence.token_ids))


class _OpenBatch:
    """A batch that is being filled up to its token budget."""

    def __init__(self, budget: int, max_padding: int, is_padded: bool) -> None:
        self.sequences: list[TokenizedText] = []
        self._budget = budget
        self._max_padding = max_padding
        self._is_padded = is_padded
        self._longest = 0
        self._num_tokens = 0
        self._num_distinct = 0
        self._kinds: set[Hashable] = set()

    def try_add(self, sequence: TokenizedText, num_alike: int | None = None) -> bool:
        """Add a sequence, or drop it if its job is over; False: the batch is full.

        Args:
            sequence: the sequence to add.
            num_alike: number of queued sequences that are no longer than this one, including it,
                where the longest come first; None: they are in no order, and the padding of the
                whole batch is bounded.
        """
        if sequence.job.is_over:
            return True
        kind = identity(sequence)
        if kind in self._kinds:  # its twin is computed anyway
            self.sequences.append(sequence)
            return True
        longest = max(self._longest, sequence.num_tokens)
        num_tokens = self._num_tokens + sequence.num_tokens
        if self.sequences:  # the first one always fits, however long it is
            cost = longest * (self._num_distinct + 1) if self._is_padded else num_tokens
            if cost > self._budget:
                return False
            padding = cost - num_tokens
            if self._is_padded and num_alike is not None:
                padding = self._padding(sequence, num_alike)
            if padding > self._max_padding:
                return False
        self.sequences.append(sequence)
        self._kinds.add(kind)
        self._num_distinct += 1
        self._longest, self._num_tokens = longest, num_tokens
        return True

    def _padding(self, sequence: TokenizedText, num_alike: int) -> int:
        """Return the padding tokens saved if this sequence, no longer one, started a new batch."""
        room = self._budget // self._longest - self._num_distinct
        return (self._longest - sequence.num_tokens) * min(room, num_alike)
