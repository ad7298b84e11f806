"""The threads on which the library computes bulk batches, and their priority.

Where each lane has a compiled model, a query and bulk batches are computed at the same time. With
equal priorities a query takes three to five times as long, since its threads wait for one another
in every layer. The library computes bulk batches on threads of its own, and does not tell which.
But on Linux a thread begins with the name of the one that starts it: so the model of the bulk lane
is compiled by threads of a name that nobody else has.

Niceness is not enough: with 19 more a query was as late in one of a hundred cases as with 10. A
thread of the policy SCHED_IDLE is put aside as soon as any other one can run. Source: sched(7);
docs/measurements/queries-beside-bulk.md, only while a core is idle.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")


class BulkThreads:
    """The bulk threads of one engine; elsewhere than on Linux they keep their priority."""

    def __init__(self) -> None:
        self._name = f"bulk-{secrets.token_hex(4)}"  # a thread's name has 15 bytes at most
        self._is_lowered = False

    def mark(self) -> None:
        """Let threads that the calling one starts from now on count as bulk threads."""
        with suppress(OSError):
            (_TASKS / str(threading.get_native_id()) / "comm").write_text(self._name)

    def lower(self) -> None:
        """Let bulk threads compute only while a core is idle, from now on; any thread may call."""
        if self._is_lowered or sys.platform != "linux":
            return
        self._is_lowered = True
        for number in self.numbers():
            with suppress(OSError):  # it has ended, or the system forbids it
                os.sched_setscheduler(number, os.SCHED_IDLE, os.sched_param(0))

    def numbers(self) -> list[int]:
        """Return the system's numbers of the bulk threads."""
        found = []
        with suppress(OSError):
            for task in _TASKS.iterdir():
                with suppress(OSError):
                    if (task / "comm").read_text().strip() == self._name:
                        found.append(int(task.name))
        return found
