"""Where both lanes share a compiled model in stages: a bulk batch waits between two for a query."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Lanes:
    """Counts the queries that are computed; any thread may call it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Reentrant: a signal handler that interrupts a query may run a query of its own."""
        self._num_queries = 0
        self._num_answered = 0

    @contextmanager
    def query(self) -> Iterator[None]:
        """Count a query batch while it is computed."""
        try:  # first: Ctrl-C behind the count would leave a query that bulk waits for
            with self._changed:
                self._num_queries += 1
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
