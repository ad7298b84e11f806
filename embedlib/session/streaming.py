"""Calls that return before their work is done: streams in bounded memory, and futures."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job
from embedlib.batching.tokenizer import TRUNCATED_ROWS_TOLD, WarnTruncated
from embedlib.engines.base import Lane
from embedlib.session.call import EmbeddingCall
from embedlib.vectors.arrays import Vectors

STREAM_JOB_TEXTS = 256
STREAM_JOBS = 16
"""`stream` reads this many jobs of this many texts ahead: four windows of the scheduler."""


def stream(
    pipeline: Pipeline, call: EmbeddingCall, texts: Iterator[str], warn_truncated: WarnTruncated
) -> Iterator[Vectors]:
    """Yield the vector of every text, float32[D], reading a bounded number of texts ahead.

    Args:
        pipeline: that of the model.
        call: how texts are tokenized and vectors look; its own texts are not used.
        texts: what to embed.
        warn_truncated: called once at the end.
    """
    jobs: deque[Job] = deque()
    truncated: list[tuple[int, int]] = []
    num_read = num_truncated = 0
    try:
        while True:
            chunk = list(islice(texts, STREAM_JOB_TEXTS))
            if chunk:
                jobs.append(pipeline.open_job(len(chunk), Lane.BULK, num_read))
                pipeline.feed(jobs[-1], chunk, call.tokenize)
                num_read += len(chunk)
                if len(jobs) < STREAM_JOBS and not jobs[0].is_over:
                    continue  # read on while there is nothing to yield
            if not jobs:
                break
            pipeline.check_may_wait()
            rows = call.finish(jobs[0].future.result())
            call.count(jobs[0])
            yield from rows
            done = jobs.popleft()
            num_truncated += len(done.truncated)
            truncated = (truncated + done.truncated)[:TRUNCATED_ROWS_TOLD]
    finally:
        for job in jobs:
            job.future.cancel()
    warn_truncated(truncated, num_truncated)


def submit(pipeline: Pipeline, call: EmbeddingCall) -> Future[Vectors]:
    """Start a call and return the future of its vectors; cancelling it drops what is queued."""
    job = pipeline.open_job(len(call.texts), call.lane)
    future: Future[Vectors] = Future()

    def resolve(done: Future[Vectors]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            rows = call.finish(done.result())
            call.count(job)
        except BaseException as error:  # goes to the caller who waits for the future
            settle = partial(future.set_exception, error)
        else:
            settle = partial(future.set_result, rows)
        try:
            settle()
        except BaseException:  # of a callback, as by sys.exit: this thread also serves other calls
            logging.getLogger(__name__).exception("a callback of a future failed")

    if call.lane is Lane.QUERY:  # `feed` might compute it on this thread
        try:
            pipeline.feed_queries(job, 0, call.texts, call.tokenize)
        except BaseException:
            job.future.cancel()
            raise
    else:
        pipeline.feed(job, call.texts, call.tokenize)
    job.future.add_done_callback(resolve)
    future.add_done_callback(lambda done: job.future.cancel() if done.cancelled() else None)
    return future
