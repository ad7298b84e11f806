"""The end of a process after some seconds, and how long the machine kept it from its work."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path


class Life:
    """Ends the process, as a kill does, after it has written for how long a core was missing."""

    def __init__(self, note: Path, seconds: float) -> None:
        self._note = note
        self._seconds = seconds

    def begin(self) -> None:
        """Start to count."""
        before = _waited_s(), _pressure_s()
        threading.Thread(target=self._live, args=before, daemon=True).start()

    def _live(self, waited: float, pressure: float) -> None:
        threading.Event().wait(self._seconds)
        waits = _waited_s() - waited, _pressure_s() - pressure
        self._note.write_text(str(max(waits)))
        os.kill(os.getpid(), signal.SIGKILL)


def _waited_s() -> float:
    """Return the longest time that a thread of this process could run and had no core.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat.
    """
    tasks = Path("/proc/self/task")
    waits = [0.0]
    for task in tasks.iterdir():
        try:
            waits.append(int((task / "schedstat").read_text().split()[1]) / 1e9)
        except OSError:  # the thread has ended, or the kernel does not count
            continue
    return max(waits)


def _pressure_s() -> float:
    """Return the time in which any thread of the machine had no core: a server's counts, too.

    Source: Documentation/accounting/psi.rst of Linux.
    """
    try:
        some = Path("/proc/pressure/cpu").read_text().split("\n")[0]
    except OSError:  # the kernel does not count
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
