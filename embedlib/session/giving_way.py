"""Stops the process that measures beside the work while the program keeps the cores busy.

It runs for a tenth of the time even then: it may hold a lock that another load waits for.

Its low priority is not enough: it takes memory bandwidth from bulk work, and two thirds of the
cores from bulk threads that a query has met, which have the same priority. Source:
docs/int8.md, measuring beside the work.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, process_time
from typing import Final

from embedlib.threads.closing import Deadline, WorkerThread, join

LOOK_SECONDS: Final = 0.2
RUNS_EVERY: Final = 10
"""Looks of a busy program from one to the next in which the process is not stopped."""
BUSY_SHARE: Final = 0.5
"""Of the model's threads: bulk work takes all of them, single queries some hundredths."""


class GivingWay:
    """A thread that looks how much the program computes, until the other process has ended.

    A process that is stopped when this one is killed gets a hangup signal and ends. Source: setpgid
    in POSIX, orphaned process groups: it is in a group of its own and in this session. Where it
    gets a new parent in this session, it asks the kernel to be woken: `preparing_process`.
    """

    def __init__(
        self,
        process: subprocess.Popen[str],
        num_threads: int,
        *,
        used_seconds: Callable[[], float] = process_time,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Start to look.

        Args:
            process: the other process.
            num_threads: of the model.
            used_seconds: returns the processor time of this process.
            look_seconds: between two looks.
        """
        self._process = process
        self._num_threads = num_threads
        self._used_seconds = used_seconds
        self._look_seconds = look_seconds
        self._is_over = threading.Event()
        self._thread = WorkerThread(self._look, "embedlib-preparing")
        self._thread.start()

    def close(self) -> None:
        """Look no more; the process may be left stopped.

        The garbage collector runs on any thread: on this one, too, it may close the model, and then
        nobody waits for it.
        """
        self._is_over.set()
        join([self._thread], Deadline(None))

    def _look(self) -> None:
        used, at, is_stopped = self._used_seconds(), monotonic(), False
        num_busy = 0
        while not self._is_over.wait(self._look_seconds) and self._process.poll() is None:
            used_now, now = self._used_seconds(), monotonic()
            is_busy = used_now - used > BUSY_SHARE * self._num_threads * (now - at)
            num_busy = num_busy + 1 if is_busy else 0
            is_to_stop = num_busy % RUNS_EVERY != 0
            if is_to_stop is not is_stopped:
                with suppress(OSError):  # it has ended meanwhile
                    self._process.send_signal(signal.SIGSTOP if is_to_stop else signal.SIGCONT)
                is_stopped = is_to_stop
            used, at = used_now, now
