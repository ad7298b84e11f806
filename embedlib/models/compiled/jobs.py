"""Jobs that need nothing of one another, on a few threads; the first that fails ends them all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import Final

Report = Callable[[int], object]
"""Called now and then with the number of bytes read since the last call; its errors end a job."""
Job = Callable[[Report], object]

MAX_THREADS: Final = 4
"""More compute faster than a disk writes."""
WAKE_SECONDS: Final = 0.2
"""A Ctrl-C that comes just before the wait begins is noticed only when it ends."""


def run_jobs(jobs: Iterable[Job], num_threads: int, report: Report) -> None:
    """Run jobs in their order, several at a time, and return when all are done.

    Whatever comes up, here (Ctrl-C) or in a job, no thread is left when it is raised: a job that is
    running ends with its next report.

    Args:
        jobs: each is called with a function that takes its reports.
        num_threads: the number of cores to use.
        report: is told what the jobs tell, by one at a time.
    """
    is_over = threading.Event()
    lock = threading.Lock()

    def hear(num_bytes: int) -> None:
        if is_over.is_set():
            raise CancelledError
        with lock:
            report(num_bytes)

    with ThreadPoolExecutor(min(num_threads, MAX_THREADS), "embedlib-compile") as pool:
        try:
            running = {pool.submit(job, hear) for job in jobs}
            while running:
                done, running = wait(running, WAKE_SECONDS, FIRST_EXCEPTION)
                for job in done:
                    job.result()
        except BaseException:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
