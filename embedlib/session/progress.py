"""Waiting for a job, with a progress bar where one is wanted."""

from __future__ import annotations

import sys
from concurrent.futures import wait
from typing import Any

from embedlib.batching.sequence import Job, Vectors
from embedlib.engines.base import Lane

PROGRESS_SECONDS = 0.1
"""How often a bar looks."""

PROGRESS_DELAY_SECONDS = 2.0
"""Work shorter than this shows no bar unless one is asked for."""


class Progress:
    """Waits for a job, with a progress bar where one is wanted."""

    def __init__(self, job: Job, show: bool | None, activity: str) -> None:
        """Start waiting; `show` None means a bar on a terminal when it takes long."""
        self._job = job
        self._bar: Any = None
        if show or (show is None and job.lane is Lane.BULK and sys.stderr.isatty()):
            from tqdm import tqdm

            delay = 0.0 if show else PROGRESS_DELAY_SECONDS
            self._bar = tqdm(total=job.num_texts, unit="text", desc=activity, delay=delay)

    def __enter__(self) -> Progress:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Give the job up if it is not done, and take the bar away."""
        self._job.future.cancel()  # left early, by Ctrl-C say: nobody waits any more
        if self._bar is not None:
            self._bar.close()

    def update(self) -> None:
        """Move the bar to where the job is."""
        if self._bar is not None:
            self._bar.update(self._job.num_done - self._bar.n)

    def wait(self) -> Vectors:
        """Return the job's vectors."""
        while self._bar is not None and not self._job.is_over:
            wait([self._job.future], timeout=PROGRESS_SECONDS)
            self.update()
        vectors = self._job.future.result()
        self.update()
        return vectors
