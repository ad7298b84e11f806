"""Texts in, a Job out: tokenizer thread and batch manager wired to one engine.

This is what an Embedder, a Reranker or a Classifier holds. It is safe to call from any number of
threads and has to be closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from embedlib.batching.lone_queries import LoneQueries
from embedlib.batching.manager import BatchManager
from embedlib.batching.sequence import Job
from embedlib.batching.stats import Meter, Stats
from embedlib.batching.tokenizer_thread import MICRO_BATCH_TEXTS, Tokenize, TokenizerThread
from embedlib.engines.base import Engine, Lane
from embedlib.errors import ClosedError, EmbedlibError


class Pipeline:
    """Turns texts into the rows of an engine, which it owns from now on."""

    def __init__(self, engine: Engine, meter: Meter, *, max_queued_texts: int) -> None:
        self._engine = engine
        self._meter = meter
        self._pid = os.getpid()
        self._is_closed = False
        self._manager = BatchManager(
            engine,
            meter,
            max_queued_texts=max_queued_texts,
        )
        self._lone_queries = LoneQueries(engine, meter)
        self._tokenizer_thread = TokenizerThread(
            self._manager.add_bulk,
            max_queued_texts=max_queued_texts,
        )

    def open_job(self, num_texts: int, lane: Lane, first_row: int = 0) -> Job:
        """Return the job of a call, to be fed next.

        Args:
            num_texts: N.
            lane: who is waiting.
            first_row: what the first text is called in messages.

        Raises:
            ClosedError: closed, or called in a forked child.
        """
        self.check_open()
        limits = self._engine.limits
        dim = None if limits.is_per_token else limits.embedding_dim
        job = Job(num_texts, dim, lane, first_row)
        self._meter.job_opened()
        job.future.add_done_callback(lambda _: self._meter.job_over())
        return job

    def feed(
        self,
        job: Job,
        texts: Sequence[Any],
        tokenize: Tokenize,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Send all texts of a job on their way.

        The query lane is tokenized right here: no queue hop. A query that nothing else of its lane
        runs beside is also computed here, if the engine can. The bulk lane goes to the tokenizer
        thread in micro-batches and blocks while its queue is full; `on_progress` is called between
        them.

        Raises:
            ClosedError: closed, before or while waiting.
            QueueFullError: too many queries wait.
            InputError: a query cannot be tokenized; bulk texts tell it through the job.
        """
        try:
            if job.lane is Lane.QUERY:
                sequences = tokenize(job, 0, texts)
                if self._manager.has_queries or not self._lone_queries.compute(sequences):
                    self._manager.add_queries(sequences)
                return
            for first_row in range(0, len(texts), MICRO_BATCH_TEXTS):
                if job.is_over:  # failed or cancelled: the rest would be computed for nobody
                    return
                chunk = texts[first_row : first_row + MICRO_BATCH_TEXTS]
                self._tokenizer_thread.put(
                    job, first_row, chunk, tokenize, may_wait=not self._is_own_thread
                )
                on_progress()
        except BaseException:
            job.future.cancel()  # Ctrl-C included: what is queued is dropped before compute
            raise

    def feed_queries(
        self, job: Job, first_row: int, texts: Sequence[Any], tokenize: Tokenize
    ) -> None:
        """Tokenize consecutive texts of a job right here and send them on their way.

        Raises:
            what `feed` raises; the job goes on.
        """
        self._manager.add_queries(tokenize(job, first_row, texts))

    def check_may_wait(self) -> None:
        """Refuse to wait on a thread that has to work for the one who waits.

        Raises:
            EmbedlibError: called on one, which is where the callbacks of futures run.
        """
        if self._is_own_thread:
            raise EmbedlibError(
                "called in the callback of a future, on the thread that would have to compute it; "
                "call submit there, or hand over to a thread of your own"
            )

    @property
    def _is_own_thread(self) -> bool:
        """Whether one of the threads that empty the queues asks: a future's callback does."""
        return self._manager.is_own_thread or self._tokenizer_thread.is_own_thread

    def stats(self) -> Stats:
        """Return the totals so far."""
        return self._meter.read()

    def check_open(self) -> None:
        """Refuse to work after `close`, and in a forked child, where threads and engine are not.

        Raises:
            ClosedError: closed, or not in the process the pipeline was made in.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this model was loaded in process {self._pid} and this is its forked child "
                f"{os.getpid()}; load it there, or start the child with 'spawn'"
            )
        if self._is_closed:
            raise ClosedError("this model is closed; load it again")

    def close(self) -> None:
        """Fail what waits, finish what is in flight, join the threads, free the engine."""
        if os.getpid() != self._pid:
            return  # a forked child has none of it
        self._is_closed = True
        with ExitStack() as rest:  # done too where Ctrl-C ends a wait
            rest.callback(self._engine.close)
            rest.callback(self._lone_queries.close)
            rest.callback(self._manager.close)
            self._manager.stop_accepting()  # lets a blocked tokenizer thread go
            self._tokenizer_thread.close()
