"""Runs independent jobs on a few threads; the first failure cancels the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, CancelledError, wait
from typing import Final

from embedlib.models.weights.file_hashes import ReportBytes
from embedlib.threads.starting import WorkerPool

CompileJob = Callable[[ReportBytes], object]

MAX_THREADS: Final = 4
"""More threads would compute faster than a disk writes."""
WAKE_SECONDS: Final = 0.2
"""Python handles a Ctrl-C that arrives just before a wait only after it, so each wait is short."""


def run_jobs(
    jobs: Iterable[CompileJob], num_threads: int, report: ReportBytes = lambda num_bytes: None
) -> None:
    """Start jobs in order, several at a time, and return when all are done.

    On an error in a job or in the caller (Ctrl-C), all threads have ended before it is raised:
    running jobs are aborted at their next report.

    Args:
        jobs: each is called with the function to report its progress to.
        num_threads: the number of cores to use.
        report: receives the reports of all jobs; calls never overlap.
    """
    is_over = threading.Event()
    lock = threading.Lock()

    def forward(num_bytes: int) -> None:
        if is_over.is_set():
            raise CancelledError
        with lock:
            report(num_bytes)

    with WorkerPool(min(num_threads, MAX_THREADS), "embedlib-compile") as pool:
        try:
            running = {pool.submit(job, forward) for job in jobs}
            while running:
                done, running = wait(running, WAKE_SECONDS, FIRST_EXCEPTION)
                for job in done:
                    job.result()
        except BaseException:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
