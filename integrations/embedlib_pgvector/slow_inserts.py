"""Tells once that a table has its index already, which makes inserts slow."""

from __future__ import annotations

from embedlib.indexing import Tell

SLOW_INSERT_ROWS = 10_000
"""Warn once after this many inserts into a table that already has its index; each takes
milliseconds."""


class SlowInserts:
    """Counts the rows inserted into one table."""

    def __init__(self, name: str, *, has_index: bool) -> None:
        """Begin to count.

        Args:
            name: of the destination.
            has_index: whether the table has its index.
        """
        self._name = name
        self._has_index = has_index
        self._num_written = 0

    def add(self, num_rows: int, tell: Tell) -> None:
        """Count rows that were inserted."""
        before, self._num_written = self._num_written, self._num_written + num_rows
        if self._has_index and before < SLOW_INSERT_ROWS <= self._num_written:
            tell(
                f"{self._name} has an index already, so inserts are tens of times slower "
                "than without one; if no searches use it, stop, drop the index and run the "
                "load again: it continues here and builds the index at the end"
            )
