"""Decides which kernels are launched next, so that a query never waits for a whole bulk batch.

A running kernel cannot be interrupted, and a stream of higher priority only gets the resources that
running kernels release. So a long batch is launched one group (`groups`) at a time, and never more
than one group ahead of the running one. A query that arrives waits for the rest of at most two
groups, a few milliseconds; then it runs, and the long batch continues where it was, possibly in the
middle of a layer. The batch's activations stay in place, and no weight is loaded twice for it.

After two short batches a waiting long batch gets a group, so a dense stream of queries cannot stop
a backfill. Long queries begin before waiting bulk batches, in the order in which they came, and
after two of them a waiting bulk batch begins: no batch waits forever.

This is pure policy: no device, no thread, no clock. The caller reports new batches and finished
groups, and gets what to launch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

LaunchedBatch = TypeVar("LaunchedBatch")

MAX_GROUPS_OUT: Final = 2
"""Maximum groups of long batches in flight: one runs, and one waits behind it so that the device is
not idle between two groups."""
MAX_SHORT_IN_A_ROW: Final = 2
"""Maximum short batches between two groups, while a long batch waits."""
MAX_QUERIES_IN_A_ROW: Final = 2
"""Maximum long queries begun one behind the other, while a bulk batch waits."""


@dataclass(frozen=True)
class Turn(Generic[LaunchedBatch]):
    """Something to launch: a short batch, or one group of a long one."""

    job: LaunchedBatch
    group: int | None
    """Index of the group; None for a short batch, which is launched as a whole."""
    is_last: bool
    """Whether this turn completes the batch."""


@dataclass(frozen=True)
class _Long(Generic[LaunchedBatch]):
    """A batch that is launched in groups."""

    job: LaunchedBatch
    num_groups: int


class Turns(Generic[LaunchedBatch]):
    """Decides what to launch next; see the module."""

    def __init__(self) -> None:
        """Start without waiting batches."""
        self._short: deque[LaunchedBatch] = deque()
        self._queries: deque[_Long[LaunchedBatch]] = deque()
        """Long queries that have not begun."""
        self._bulk: deque[_Long[LaunchedBatch]] = deque()
        """Other long batches that have not begun."""
        self._begun: _Long[LaunchedBatch] | None = None
        """The long batch whose groups are launched."""
        self._next_group = 0
        """Index of its next group."""
        self._num_groups_out = 0
        self._num_short_in_a_row = 0
        self._num_queries_in_a_row = 0

    def add_short(self, job: LaunchedBatch) -> None:
        """Add a batch that is launched as a whole."""
        self._short.append(job)

    def add_long(self, job: LaunchedBatch, num_groups: int, *, is_query: bool) -> None:
        """Add a batch that is launched in groups."""
        (self._queries if is_query else self._bulk).append(_Long(job, num_groups))

    def next(self) -> Turn[LaunchedBatch] | None:
        """Return what to launch now; None if that needs another `add` or `finish` first."""
        has_long = self._begun is not None or bool(self._queries or self._bulk)
        if self._short and (not has_long or self._num_short_in_a_row < MAX_SHORT_IN_A_ROW):
            self._num_short_in_a_row += 1
            return Turn(self._short.popleft(), None, is_last=True)
        if not has_long or self._num_groups_out == MAX_GROUPS_OUT:
            return None
        self._num_short_in_a_row = 0
        self._num_groups_out += 1
        if self._begun is None:
            self._begun, self._next_group = self._next_long(), 0
        long, group = self._begun, self._next_group
        self._next_group += 1
        is_last = self._next_group == long.num_groups
        if is_last:
            self._begun = None
        return Turn(long.job, group, is_last)

    def finish(self, turn: Turn[LaunchedBatch]) -> None:
        """Record that the device has finished a turn."""
        if turn.group is not None:
            self._num_groups_out -= 1

    def drop(self, turn: Turn[LaunchedBatch]) -> None:
        """Remove the rest of a batch whose turn could not be launched."""
        if turn.group is not None:
            self._num_groups_out -= 1
            if not turn.is_last:
                self._begun = None

    def _next_long(self) -> _Long[LaunchedBatch]:
        """Take the long batch that begins next; there is one."""
        is_turn_of_bulk = self._num_queries_in_a_row >= MAX_QUERIES_IN_A_ROW and self._bulk
        if self._queries and not is_turn_of_bulk:
            self._num_queries_in_a_row = self._num_queries_in_a_row + 1 if self._bulk else 0
            return self._queries.popleft()
        self._num_queries_in_a_row = 0
        return self._bulk.popleft()
