"""What lets queries go before bulk work.

Where both lanes share a compiled model in stages, a bulk batch waits before each for a query. Where
each has its own, bulk threads compute only while a core is idle, from the first time on that the
two meet: an engine without queries keeps its priority beside other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from embedlib.threads.interrupts import SafeCondition

MOST_SECONDS: Final = 10
"""That bulk work waits for queries. Where a signal handler interrupts one and waits for bulk work,
as in a call of its own, each would wait for the other."""


class Lanes:
    """Counts what is computed; any thread may call it."""

    def __init__(self, when_met: Callable[[], None] = lambda: None) -> None:
        """Count nothing.

        Args:
            when_met: called when a query is computed beside a bulk batch.
        """
        self._when_met = when_met
        self._num_bulk = 0
        self._changed = SafeCondition()
        """Reentrant: a signal handler that interrupts a query may run a query of its own."""
        self._queries: set[object] = set()
        """One object for each query that is computed."""
        self._num_answered = 0

    @contextmanager
    def query(self) -> Iterator[None]:
        """Count a query batch while it is computed."""
        query = object()
        try:  # first: Ctrl-C behind the next step would leave a query that bulk waits for
            with self._changed:
                self._queries.add(query)
            if self._num_bulk:
                self._when_met()
            yield
        finally:
            with self._changed:
                self._queries.discard(query)  # Ctrl-C may have come before it was added
                self._num_answered += 1
                self._changed.notify_all()

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

    def give_way(self) -> None:
        """Wait while a query batch is computed: for one only, or bulk might never go on."""
        with self._changed:
            before, answered = set(self._queries), self._num_answered
            is_free = self._changed.wait_for(
                lambda: not self._queries or self._num_answered > answered, MOST_SECONDS
            )
            if not is_free:
                self._queries -= before
