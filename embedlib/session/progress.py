"""Shows the progress of a job."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext

from embedlib.batching.sequence import Job
from embedlib.engines.base import Lane
from embedlib.progress import Progress
from embedlib.screens import Reading, open_screen, terminal_columns

PROGRESS_DELAY_SECONDS = 2.0
"""An automatic bar appears only after this time."""


def showing(job: Job, show: bool | None, activity: str) -> AbstractContextManager[object]:
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
