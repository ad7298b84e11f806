"""A progress bar that observes a job."""

from __future__ import annotations

import sys
from typing import Any

from embedlib.batching.sequence import Job
from embedlib.engines.base import Lane

PROGRESS_SECONDS = 0.1
"""Time between two redraws of a bar while a session waits for the job."""

PROGRESS_DELAY_SECONDS = 2.0
"""An automatic bar appears only after this time."""


class Progress:
    """Shows the progress of a job, if a bar is wanted; it neither waits for the job nor ends it."""

    def __init__(self, job: Job, show: bool | None, activity: str) -> None:
        """Show the bar; None: for bulk work on a terminal that takes longer than the delay."""
        self._job = job
        self._bar: Any = None
        if show or (show is None and job.lane is Lane.BULK and sys.stderr.isatty()):
            from tqdm import tqdm

            delay = 0.0 if show else PROGRESS_DELAY_SECONDS
            self._bar = tqdm(total=job.num_texts, unit="text", desc=activity, delay=delay)

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar to update."""
        return self._bar is not None

    def update(self) -> None:
        """Move the bar to the number of finished texts."""
        if self._bar is not None:
            self._bar.update(self._job.num_done - self._bar.n)

    def __enter__(self) -> Progress:
        """Return this object."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
