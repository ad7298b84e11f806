"""Texts in, a Job out: tokenizer thread and batch manager wired to one engine.

Every Embedder, Reranker and Classifier has one. Any number of threads may call it. It must be
closed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from embedlib.batching.callers import Callers, counted
from embedlib.batching.direct import InstantTexts, LoneQueries
from embedlib.batching.futures import CallerFuture, check_may_wait
from embedlib.batching.manager import BatchManager
from embedlib.batching.outcome import Outcome
from embedlib.batching.policy import DEFAULT_POLICY, BatchingPolicy
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter, Stats
from embedlib.batching.tokenizing.tokenizer_thread import Tokenize, TokenizerThread
from embedlib.engines.base import CallerEngine, Engine, Lane
from embedlib.errors import ClosedError
from embedlib.threads.closing import (
    CLOSE_SECONDS,
    Deadline,
    closed_error,
    join,
    program_has_ended,
    timeout_error,
)


class Pipeline:
    """Runs texts through an engine, which it owns and closes."""

    def __init__(
        self,
        engine: Engine,
        meter: Meter,
        *,
        callers: Callers | None = None,
        max_queued_texts: int,
        policy: BatchingPolicy = DEFAULT_POLICY,
    ) -> None:
        """Start the threads.

        Args:
            engine: computes the batches.
            meter: collects the statistics.
            callers: counts the calls; None: a counter of its own.
            max_queued_texts: limit of each queue.
            policy: how texts are divided into batches.

        Raises:
            EngineBuildError: a thread cannot be started; none is left.
        """
        self.callers = callers or Callers()
        self._engine = engine
        self._meter = meter
        self._pid = os.getpid()
        self._is_closed = False
        self._was_ending = False
        """Whether it was closed when the program had ended."""
        self._open_jobs: dict[int, Job] = {}
        """Jobs that are not over, by id. Any thread adds and removes; both are atomic."""
        self._lone_queries = LoneQueries(engine, meter)
        self._manager = BatchManager(
            engine, meter, max_queued_texts=max_queued_texts, policy=policy, at_end=self._free
        )
        self._instant: InstantTexts | None = None
        if engine.limits.is_instant and isinstance(engine, CallerEngine):
            self._instant = InstantTexts(engine, meter)
        self._num_together = policy.micro_batch(engine.limits)
        """Bulk texts of a micro-batch."""
        send = self._instant or self._manager.add_bulk
        try:
            self._tokenizer_thread = TokenizerThread(send, max_queued_texts=max_queued_texts)
        except BaseException:  # no more threads can be started
            self._manager.stop()
            join([self._manager.thread], Deadline(CLOSE_SECONDS))
            raise

    @counted
    def open_job(
        self, num_texts: int, lane: Lane, first_row: int = 0, rows_per_text: int = 1
    ) -> Job:
        """Open the job of a call; `feed` or `feed_queries` takes its texts.

        Args:
            num_texts: number of texts in the call.
            lane: the lane.
            first_row: row of the first text in messages.
            rows_per_text: consecutive rows that messages and counts take for one text.

        Raises:
            ClosedError: closed, or called in a forked child.
        """
        self.check_open()
        limits = self._engine.limits
        dim = None if limits.is_per_token or limits.is_sparse else limits.embedding_dim
        job = Job(num_texts, dim, lane, first_row, self._meter.clock(), rows_per_text)
        self._meter.job_opened()
        self._open_jobs[id(job)] = job
        # Without a reference to the pipeline, since callers may keep futures; and without a cycle
        # through the job, which would keep its vectors until the garbage collector runs.
        job.future.add_done_callback(partial(_job_over, self._meter, self._open_jobs, id(job)))
        return job

    @counted
    def feed(self, job: Job, texts: Sequence[Any], tokenize: Tokenize) -> None:
        """Queue all texts of a job.

        Queries are tokenized on the calling thread, which saves a queue hop. A query that is alone
        in its lane is also computed there, if the engine is a `CallerEngine`. Bulk texts go to the
        tokenizer thread in micro-batches; this blocks while its queue is full.

        Raises:
            ClosedError: closed, before or while waiting.
            QueueFullError: the query queue is full.
            InputError: a query cannot be tokenized; for bulk texts the job's future fails instead.
        """
        try:
            if job.lane is Lane.QUERY:
                self._feed_queries(job, texts, tokenize)
            else:
                self._feed_bulk(job, texts, tokenize)
        except BaseException:
            job.future.cancel()  # also for Ctrl-C: drops queued texts before compute
            raise

    @counted
    def feed_or_fail(self, job: Job, texts: Sequence[Any], tokenize: Tokenize) -> None:
        """Do for queries what `feed` does, but what it would raise fails the job's future.

        So a thread pool can run it, and who waits has one future to wait for.
        """
        if job.is_over:  # while it waited for a thread of the pool
            return
        try:
            self._feed_queries(job, texts, tokenize)
        except BaseException as error:
            job.fail(error)

    def _feed_queries(self, job: Job, texts: Sequence[Any], tokenize: Tokenize) -> None:
        sequences = tokenize(job, 0, texts)
        if self._instant is not None:
            self._instant(sequences, Lane.QUERY)
            return
        if self._manager.has_queries or not self._lone_queries.compute(sequences):
            self._manager.add_queries(sequences)

    async def afeed_bulk(self, job: Job, texts: Sequence[Any], tokenize: Tokenize) -> None:
        """Queue all texts of a bulk job; waits while the queue is full, and blocks no thread.

        Raises:
            ClosedError: closed, before or while waiting; the job stays open.
        """
        loop = asyncio.get_running_loop()
        may_go_on = asyncio.Event()

        def tell(_: Outcome[Any] | None = None) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(may_go_on.set)

        job.future.add_done_callback(tell)  # failed or cancelled
        for first_row, micro_batch in self._micro_batches(job, texts):
            if not self._offer(job, first_row, micro_batch, tokenize, tell):
                await may_go_on.wait()
                may_go_on.clear()

    @counted
    def _offer(self, *arguments: Any) -> bool:
        return self._tokenizer_thread.offer(*arguments)

    def _feed_bulk(self, job: Job, texts: Sequence[Any], tokenize: Tokenize) -> None:
        self._tokenizer_thread.release_when_over(job)
        may_wait = threading.current_thread() not in self._threads
        for first_row, micro_batch in self._micro_batches(job, texts):
            self._tokenizer_thread.put(job, first_row, micro_batch, tokenize, may_wait=may_wait)

    def _micro_batches(self, job: Job, texts: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield the bulk texts that are queued together, with the row of the first of them."""
        for first_row in range(0, len(texts), self._num_together):
            if job.is_over:  # failed or cancelled: skip the rest
                return
            yield first_row, texts[first_row : first_row + self._num_together]

    @counted
    def feed_queries(
        self, job: Job, first_row: int, texts: Sequence[Any], tokenize: Tokenize
    ) -> None:
        """Tokenize consecutive queries of a job on the calling thread and queue them.

        An engine that computes at once does so.

        Raises:
            what `feed` raises; the job stays open.
        """
        (self._instant or self._manager.add_queries)(tokenize(job, first_row, texts))

    @counted
    def queue_queries(self, sequences: Sequence[TokenizedText]) -> None:
        """Queue tokenized queries of any number of jobs at once.

        Raises:
            QueueFullError: the query queue is full; it has taken none of them.
            ClosedError: closed.
        """
        self._manager.add_queries(sequences)

    def has_room(self, num_queries: int) -> bool:
        """Return whether the query queue takes so many more; a moment later it may not."""
        return self._manager.has_room(num_queries)

    @property
    def failure(self) -> str | None:
        """Why it will never compute again though nobody has closed it: a bug. None: it may."""
        return self._manager.failure

    def check_may_wait(self) -> None:
        """Check that the calling thread may block on a job.

        Raises:
            EmbedlibError: it is one of the pipeline's threads, which run the callbacks of futures
                and would wait for themselves.
        """
        check_may_wait(self._threads)

    def make_future(self) -> CallerFuture[Any]:
        """Return a future for a caller, which this pipeline's threads will resolve."""
        return CallerFuture(self._threads)

    @property
    def _threads(self) -> tuple[threading.Thread, ...]:
        """The threads of the pipeline; they run the callbacks of futures."""
        return self._tokenizer_thread.thread, self._manager.thread

    @counted
    def stats(self) -> Stats:
        """Return the totals so far."""
        return self._meter.read()

    def check_open(self) -> None:
        """Check that the pipeline is open and in its own process; a fork copies no threads.

        Raises:
            ClosedError: closed, or not in the process the pipeline was made in.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                f"this model was loaded in process {self._pid} and this is its forked child "
                f"{os.getpid()}; load it after the fork and not before, or start the child with "
                "'spawn'"
            )
        if self._was_ending:
            raise ClosedError(
                "this model was closed because the program ends; register a function with atexit "
                "that needs it after loading it"
            )
        if self._is_closed:
            raise closed_error()

    def close(self, timeout: float | None = CLOSE_SECONDS) -> None:
        """Fail queued jobs, finish the batches in flight, free the engine, join the threads.

        Raises:
            CloseTimeoutError: a thread still runs after `timeout` seconds; all jobs have failed.
            Exception: what the engine's `close` raised.
        """
        if os.getpid() != self._pid:
            return  # a forked child has neither the threads nor the engine
        if not self._is_closed:
            self._was_ending = program_has_ended()
        self._is_closed = True
        deadline = Deadline(timeout)
        self._lone_queries.stop()
        self._manager.stop()  # wakes a blocked tokenizer thread
        self._tokenizer_thread.stop()
        left = join(self._threads, deadline)
        if left:
            consequence = (
                "the engine is not freed before it answers, and all open calls have failed"
            )
            error = timeout_error("the model", left, timeout, consequence)
            self._fail_open_jobs(error)
            raise error
        self._manager.raise_end_error()

    def _fail_open_jobs(self, cause: BaseException) -> None:
        error = ClosedError("the model was closed and its engine has not answered in time")
        error.__cause__ = cause
        for job in list(self._open_jobs.values()):
            job.fail(error)

    def _free(self) -> None:
        """Free the engine, on the batch manager's thread."""
        self._lone_queries.close()
        self._engine.close()


def _job_over(meter: Meter, open_jobs: dict[int, Job], key: int, _: Outcome[Any]) -> None:
    open_jobs.pop(key, None)
    meter.job_over()
