"""How the lanes of an engine share the cores, so that a query does not wait long for bulk work."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

BULK_NICENESS: Final = 10
"""Added to the niceness of bulk threads: beside a query they get a tenth of a core. Source: the
weights in `sched_prio_to_weight` of Linux, kernel/sched/core.c: 110 against 1,024."""


class Lanes:
    """Counts what is computed; any thread may call it.

    Where each lane has a compiled model, a query and bulk batches are computed at the same time.
    From the first time on that they meet, the bulk threads have a lower priority: with an equal one
    a query takes three to four times as long, since its threads wait for one another in every
    layer. An engine without queries keeps its priority beside other programs.

    Where both share a compiled model in stages, a bulk batch waits between two of them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Reentrant: a signal handler that interrupts a query may run a query of its own."""
        self._num_bulk = 0
        self._num_queries = 0
        self._num_answered = 0
        self._bulk_threads: Sequence[threading.Thread] = ()

    def lower_when_met(self, threads: Sequence[threading.Thread]) -> None:
        """Lower the priority of these threads once a query and a bulk batch are computed."""
        self._bulk_threads = threads

    @contextmanager
    def bulk(self) -> Iterator[None]:
        """Count a bulk batch while it is computed."""
        with self._changed:
            self._num_bulk += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_bulk -= 1

    @contextmanager
    def query(self) -> Iterator[None]:
        """Count a query batch while it is computed."""
        try:  # first: Ctrl-C behind the count would leave a query that bulk waits for
            with self._changed:
                self._num_queries += 1
                threads = self._bulk_threads if self._num_bulk else ()
                if threads:
                    self._bulk_threads = ()
            lower_priority(threads)
            yield
        finally:
            with self._changed:
                self._num_queries -= 1
                self._num_answered += 1
                self._changed.notify_all()

    def give_way(self) -> None:
        """Wait while a query batch is computed: for one only, or bulk might never go on."""
        with self._changed:
            answered = self._num_answered
            self._changed.wait_for(lambda: self._num_queries <= 0 or self._num_answered > answered)


def lower_priority(threads: Sequence[threading.Thread]) -> None:
    """Lower the priority of running threads; only Linux has one for each thread."""
    if sys.platform != "linux":
        return
    for thread in threads:
        if thread.native_id is not None:
            with suppress(OSError):  # it has ended, or the system forbids it
                niceness = os.getpriority(os.PRIO_PROCESS, thread.native_id)
                os.setpriority(os.PRIO_PROCESS, thread.native_id, niceness + BULK_NICENESS)
