"""Calls that return before their work is done: streams and futures."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job
from embedlib.batching.tokenizer import MAX_ROWS_NAMED, WarnTruncated
from embedlib.closing import end_left_behind
from embedlib.engines.base import Lane
from embedlib.errors import ClosedError
from embedlib.session.call import EmbeddingCall
from embedlib.vectors.arrays import Vectors

STREAM_JOB_TEXTS = 256
STREAM_JOBS = 16
"""`stream` reads at most STREAM_JOBS jobs of STREAM_JOB_TEXTS texts ahead: four windows of the
scheduler."""


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
            truncated = (truncated + done.truncated)[:MAX_ROWS_NAMED]
    except ClosedError:
        end_left_behind()
        raise
    finally:
        for job in jobs:
            job.future.cancel()
    warn_truncated(truncated, num_truncated)


def submit(pipeline: Pipeline, call: EmbeddingCall) -> Future[Vectors]:
    """Start a call and return the future of its vectors; cancelling it drops queued texts.

    Waiting for it in the callback of a future of the same model raises EmbedlibError.
    """
    job = pipeline.open_job(len(call.texts), call.lane)
    future: Future[Vectors] = pipeline.make_future()

    def resolve(done: Future[Vectors]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            rows = call.finish(done.result())
            call.count(job)
        except BaseException as error:  # the future fails with it
            settle = partial(future.set_exception, error)
        else:
            settle = partial(future.set_result, rows)
        try:
            settle()
        except BaseException:  # a callback may raise, even SystemExit; this thread must go on
            logging.getLogger(__name__).exception("a callback of a future failed")

    if call.lane is Lane.QUERY:  # never blocks: `feed` might compute it on this thread
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
