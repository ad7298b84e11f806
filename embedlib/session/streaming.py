"""Calls that return before their work is done: streams and futures."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice

from embedlib.batching.outcome import Outcome
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job
from embedlib.batching.tokenizing.refusals import MAX_ROWS_NAMED, WarnTruncated
from embedlib.engines.base import Lane
from embedlib.errors import ClosedError
from embedlib.session.call import Call, EmbeddingCall
from embedlib.threads.closing import end_left_behind, wait_left_behind
from embedlib.vectors.arrays import AnyVectors, Vectors

STREAM_JOB_TEXTS = 256
STREAM_JOBS = 16
"""`stream` reads at most STREAM_JOBS jobs of STREAM_JOB_TEXTS texts ahead: four windows of the
scheduler."""


class _ReadAhead:
    """The texts of a stream that were read and whose vectors were not yielded."""

    def __init__(self, pipeline: Pipeline, call: EmbeddingCall, texts: Iterator[str]) -> None:
        self._pipeline = pipeline
        self._call = call
        self._texts = texts
        self._jobs: deque[Job] = deque()
        self._num_read = self._num_truncated = 0
        self._truncated: list[tuple[int, int]] = []

    def read(self) -> tuple[Job, list[str]] | None:
        """Read the next texts and open a job for them; None: there are no more."""
        chunk = list(islice(self._texts, STREAM_JOB_TEXTS))
        if not chunk:
            return None
        job = self._pipeline.open_job(len(chunk), Lane.BULK, self._num_read)
        self._jobs.append(job)
        self._num_read += len(chunk)
        return job, chunk

    @property
    def has_room(self) -> bool:
        """Whether to read on, since there is room and nothing to yield."""
        return len(self._jobs) < STREAM_JOBS and not self._jobs[0].is_over

    @property
    def oldest(self) -> Job | None:
        """The job whose vectors come next; None: all were yielded."""
        return self._jobs[0] if self._jobs else None

    def count_oldest(self) -> None:
        """Count the oldest job and forget it."""
        job = self._jobs.popleft()
        self._call.count(job)
        self._num_truncated += len(job.truncated)
        self._truncated = (self._truncated + job.truncated)[:MAX_ROWS_NAMED]

    def warn(self, warn_truncated: WarnTruncated) -> None:
        """Warn of all truncated texts."""
        warn_truncated(self._truncated, self._num_truncated)

    def cancel(self) -> None:
        """Drop what is not computed yet."""
        for job in self._jobs:
            job.future.cancel()


def stream(
    pipeline: Pipeline, call: EmbeddingCall, texts: Iterator[str], warn_truncated: WarnTruncated
) -> Iterator[Vectors]:
    """Yield the vector of every text, float32[D], reading a bounded number of texts ahead.

    Args:
        pipeline: computes the texts.
        call: how to tokenize texts and convert vectors; its own texts are not used.
        texts: the texts to embed.
        warn_truncated: called once at the end.
    """
    ahead = _ReadAhead(pipeline, call, texts)
    try:
        while True:
            if (part := ahead.read()) is not None:
                pipeline.feed(*part, call.tokenize)
                if ahead.has_room:
                    continue
            if (oldest := ahead.oldest) is None:
                break
            pipeline.check_may_wait()
            rows = call.finish(oldest.future.result())
            ahead.count_oldest()
            yield from rows
    except ClosedError:
        end_left_behind()
        raise
    finally:
        ahead.cancel()
    ahead.warn(warn_truncated)


async def astream(
    pipeline: Pipeline, call: EmbeddingCall, texts: Iterator[str], warn_truncated: WarnTruncated
) -> AsyncIterator[Vectors]:
    """Yield what `stream` yields without blocking the event loop."""
    pipeline.check_may_wait()  # an event loop in a callback would wait as well
    ahead = _ReadAhead(pipeline, call, texts)
    try:
        while True:
            if (part := ahead.read()) is not None:
                await pipeline.afeed_bulk(*part, call.tokenize)
                if ahead.has_room:
                    continue
            if (oldest := ahead.oldest) is None:
                break
            rows = call.finish(await oldest.future.in_loop())
            ahead.count_oldest()
            for row in rows:
                yield row
    except (ClosedError, RuntimeError) as error:
        await wait_left_behind(error)
        raise
    finally:
        ahead.cancel()
    ahead.warn(warn_truncated)


def submit(
    pipeline: Pipeline, call: Call, finish: Callable[[Vectors], AnyVectors]
) -> Future[AnyVectors]:
    """Start a call and return the future of its vectors; cancelling it drops queued texts.

    Waiting for it in the callback of a future of the same model raises EmbedlibError.

    Args:
        pipeline: computes the texts.
        call: the texts, and how to tokenize them.
        finish: makes the vectors of the engine's rows.
    """
    future: Future[AnyVectors] = pipeline.make_future()

    def resolve(done: Outcome[Vectors]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            rows = finish(done.result())
            call.count(job)
        except BaseException as error:  # the future fails with it
            settle = partial(future.set_exception, error)
        else:
            settle = partial(future.set_result, rows)
        try:
            settle()
        except BaseException:  # a callback may raise, even SystemExit; this thread must go on
            logging.getLogger(__name__).exception("a callback of a future failed")

    job = pipeline.open_job(len(call.texts), call.lane)
    try:
        if call.lane is Lane.QUERY:  # never blocks: `feed` might compute it on this thread
            pipeline.feed_queries(job, 0, call.texts, call.tokenize)
        else:
            pipeline.feed(job, call.texts, call.tokenize)
    except BaseException:
        job.future.cancel()
        raise
    job.future.add_done_callback(resolve)
    future.add_done_callback(partial(_drop, weakref.ref(job)))
    return future


def _drop(reference: weakref.ref[Job], future: Future[AnyVectors]) -> None:
    """Drop what is left of a job whose future is cancelled.

    Callers keep futures, which keep their callbacks: with it, a job would keep rows of its own.
    """
    if future.cancelled() and (job := reference()) is not None:
        job.future.cancel()
