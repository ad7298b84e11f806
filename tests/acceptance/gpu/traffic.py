"""Keeps an engine busy with batches from one thread, and records when each is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from embedlib.engines.base import Batch, Engine, Lane
from embedlib.models.spec import Encoder
from tests.acceptance.gpu.texts import batch_flops


@dataclass
class Traffic:
    """What came back."""

    query_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_seqs: int = 0
    num_flops: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Of bulk."""
        return self.num_tokens / self.seconds


def drive(
    engine: Engine,
    encoder: Encoder,
    seconds: float,
    *,
    bulk: Sequence[Batch] = (),
    queries: Sequence[Batch] = (),
    queries_per_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Traffic:
    """Keep an engine full of bulk, and send queries beside it.

    Args:
        engine: what is measured.
        encoder: its model, to count operations.
        seconds: for how long; what is on its way then is waited for.
        bulk: batches, again and again; none: only queries.
        queries: batches on the query lane, again and again; none: only bulk.
        queries_per_s: mean of random arrivals. A query's time begins when it was due, so that one
            that had to wait for another one is not told to be quick. None: one behind the other.
        clock: returns the time in seconds.
    """
    done: SimpleQueue[tuple[Any, Batch, float]] = SimpleQueue()
    random = np.random.default_rng(0)
    batches, next_queries = cycle(bulk), cycle(queries)
    limits = engine.limits
    max_queries = limits.max_inflight_batches - limits.max_inflight_bulk if queries_per_s else 1
    num_bulk = num_queries = 0
    traffic = Traffic()
    begin = next_query = clock()
    end = begin + seconds

    def send(batch: Batch, since: float) -> None:
        jobs: list[Any] = []
        jobs.append(engine.submit(batch, lambda: done.put((jobs, batch, since))))

    while (now := clock()) < end or num_bulk or num_queries:
        if now < end:
            while bulk and num_bulk < limits.max_inflight_bulk:
                send(next(batches), now)
                num_bulk += 1
            while queries and now >= next_query and num_queries < max_queries:
                send(next(next_queries), next_query if queries_per_s else now)
                num_queries += 1
                next_query += random.exponential(1 / queries_per_s) if queries_per_s else 0.0
        waits = bool(queries) and num_queries < max_queries and now < end
        try:
            jobs, batch, since = done.get(timeout=max(0.0, next_query - now) if waits else None)
        except Empty:
            continue
        jobs[0].result()
        if batch.lane is Lane.QUERY:
            num_queries -= 1
            traffic.query_s.append(clock() - since)
        else:
            num_bulk -= 1
            traffic.num_tokens += len(batch.token_ids)
            traffic.num_seqs += batch.num_seqs
            traffic.num_flops += batch_flops(encoder, batch.seq_lens.tolist())
    traffic.seconds = clock() - begin
    return traffic
