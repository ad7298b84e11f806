"""A progress bar that observes a job."""

from __future__ import annotations

import sys
from typing import Any

from embedlib.batching.sequence import Job
from embedlib.engines.base import Lane

PROGRESS_SECONDS = 0.1
"""Time between two redraws of a bar while a session waits for the job."""

PROGRESS_DELAY_SECONDS = 2.0
"""Work shorter than this shows no bar unless one is asked for."""


class Progress:
    """Shows how far a job is, where a bar is wanted; it neither waits for the job nor ends it."""

    def __init__(self, job: Job, show: bool | None, activity: str) -> None:
        """Show the bar; `show` None means on a terminal, and only when the job takes long."""
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
        """Move the bar to the number of texts that are done."""
        if self._bar is not None:
            self._bar.update(self._job.num_done - self._bar.n)

    def __enter__(self) -> Progress:
        """Return the same object."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
