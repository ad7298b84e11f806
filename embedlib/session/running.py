"""Runs a call on a pipeline and waits for it: on a thread, or on an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, TypeVar

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job
from embedlib.batching.tokenizing.refusals import WarnTruncated
from embedlib.engines.base import Lane
from embedlib.errors import QueueFullError
from embedlib.progress.phases import Progress
from embedlib.progress.screens import Reading, open_screen, terminal_columns
from embedlib.session.call import Call
from embedlib.vectors.arrays import Vectors

R = TypeVar("R")

ASYNC_SLICE_TEXTS: Final = 16
"""Queries, or documents to rank, that the event loop tokenizes at a time: some milliseconds."""
ASYNC_SLICE_CHARACTERS: Final = 1 << 16
"""Longer slices are tokenized on another thread; a tokenizer takes about a second for 2 MB."""
ASYNC_ROWS: Final = 1024
"""More vectors are converted on another thread."""
PROGRESS_DELAY_SECONDS: Final = 2.0
"""An automatic bar appears only after this time."""
FIRST_ROW: ContextVar[int] = ContextVar("FIRST_ROW", default=0)
"""Row of a call's first text in messages."""


@contextmanager
def rows_from(first_row: int) -> Iterator[None]:
    """Number the rows of the calls inside from this one, for an input that is many calls."""
    token = FIRST_ROW.set(first_row)
    try:
        yield
    finally:
        FIRST_ROW.reset(token)


def run(
    pipeline: Pipeline,
    call: Call,
    warn_truncated: WarnTruncated,
    show_progress_bar: bool | None,
    activity: str,
) -> Vectors:
    """Run a call and wait for it; return the engine's rows, one for each text or pair.

    Args:
        pipeline: where to run it.
        call: what to compute.
        warn_truncated: called at the end.
        show_progress_bar: None shows one on a terminal when it takes longer than 2 seconds.
        activity: the label of the bar.
    """
    pipeline.check_may_wait()
    call = _where_room_is(pipeline, call)
    try:
        job, rows = _compute(pipeline, call, show_progress_bar, activity)
    except QueueFullError:
        if not call.waits_if_full:
            raise
        job, rows = _compute(pipeline, _as_bulk(call), show_progress_bar, activity)
    call.count(job)
    warn_truncated(job.truncated, len(job.truncated))
    return rows


def _compute(
    pipeline: Pipeline, call: Call, show_progress_bar: bool | None, activity: str
) -> tuple[Job, Vectors]:
    job = _open_job(pipeline, call)
    try:
        with _showing(job, show_progress_bar, activity):
            pipeline.feed(job, call.texts, call.tokenize)
            return job, job.future.result()
    finally:
        job.future.cancel()  # left early, by Ctrl-C for example: drops what is still queued


def _showing(job: Job, show: bool | None, activity: str) -> AbstractContextManager[object]:
    """Show the progress of a job inside a `with` block; it neither waits for the job nor ends it.

    Args:
        job: what to look at.
        show: None: for bulk work on a terminal that takes longer than the delay.
        activity: what goes on.
    """
    is_automatic = show is None and job.lane is Lane.BULK and terminal_columns(sys.stderr) > 0
    if not (show or is_automatic):
        return nullcontext()
    progress = Progress(open_screen(sys.stderr, delay=0.0 if show else PROGRESS_DELAY_SECONDS))
    each = job.rows_per_text
    progress.watch(
        activity,
        "texts",
        lambda: Reading(done=job.num_done // each, total=job.num_texts // each),
    )
    return progress


async def arun(pipeline: Pipeline, call: Call, warn_truncated: WarnTruncated) -> Vectors:
    """Do what `run` does without blocking the event loop."""
    pipeline.check_may_wait()  # an event loop in a callback would wait as well
    call = _where_room_is(pipeline, call)
    try:
        job, rows = await _acompute(pipeline, call)
    except QueueFullError:
        if not call.waits_if_full:
            raise
        job, rows = await _acompute(pipeline, _as_bulk(call))
    call.count(job)
    warn_truncated(job.truncated, len(job.truncated))
    return rows


async def _acompute(pipeline: Pipeline, call: Call) -> tuple[Job, Vectors]:
    job = _open_job(pipeline, call)
    try:
        if call.lane is Lane.QUERY:
            for first_row in range(0, len(call.texts), ASYNC_SLICE_TEXTS):
                if first_row:
                    await asyncio.sleep(0)  # lets the other tasks of the event loop run
                part = call.texts[first_row : first_row + ASYNC_SLICE_TEXTS]
                feed = (job, first_row, part, call.tokenize)
                if _num_characters(part) > ASYNC_SLICE_CHARACTERS:
                    await asyncio.to_thread(pipeline.feed_queries, *feed)
                else:
                    pipeline.feed_queries(*feed)
        else:
            await pipeline.afeed_bulk(job, call.texts, call.tokenize)
        return job, await job.future.in_loop()
    finally:
        job.future.cancel()  # the task was cancelled: drops what is still queued


def _open_job(pipeline: Pipeline, call: Call) -> Job:
    return pipeline.open_job(len(call.texts), call.lane, FIRST_ROW.get(), call.rows_per_text)


def _where_room_is(pipeline: Pipeline, call: Call) -> Call:
    """Return a call, as bulk work if it waits where the queue of queries is full, and that is.

    Asked before its texts are tokenized: that the queue fills up meanwhile costs a second time.
    """
    if call.waits_if_full and call.lane is Lane.QUERY and not pipeline.has_room(len(call.texts)):
        return _as_bulk(call)
    return call


def _as_bulk(call: Call) -> Call:
    """Return a call that waits for room: its job is another one, what was queued is dropped."""
    return replace(call, lane=Lane.BULK)


async def aconvert(convert: Callable[[Vectors], R], rows: Vectors) -> R:
    """Return what a function makes of rows; of many rows on another thread."""
    return await asyncio.to_thread(convert, rows) if len(rows) > ASYNC_ROWS else convert(rows)


def _num_characters(texts: Sequence[Any]) -> int:
    """Return how long texts, or pairs of texts, are; anything else is refused later."""
    parts = (part for text in texts for part in (text if isinstance(text, tuple) else (text,)))
    return sum(len(part) for part in parts if isinstance(part, str))
