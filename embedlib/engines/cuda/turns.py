"""Decides which kernels are launched next, so that a query never waits for a whole bulk batch.

A running kernel cannot be interrupted, and a stream of higher priority only gets the resources that
running kernels release. So a long batch is launched one group (`groups`) at a time, and never more
than one group ahead of the running one. A query that arrives waits for the rest of at most two
groups, a few milliseconds; then it runs, and the long batch continues where it was, possibly in the
middle of a layer. The batch's activations stay in place, and no weight is loaded twice for it.

After two short batches a waiting long batch gets a group, so a dense stream of queries cannot stop
a backfill.

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


@dataclass(frozen=True)
class Turn(Generic[LaunchedBatch]):
    """Something to launch: a short batch, or one group of a long one."""

    job: LaunchedBatch
    group: int | None
    """Index of the group; None for a short batch, which is launched as a whole."""
    is_last: bool
    """Whether this turn completes the batch."""


class Turns(Generic[LaunchedBatch]):
    """Decides what to launch next; see the module."""

    def __init__(self) -> None:
        """Start without waiting batches."""
        self._short: deque[LaunchedBatch] = deque()
        self._long: deque[tuple[LaunchedBatch, int]] = deque()
        """Waiting batches and their number of groups."""
        self._next_group = 0
        """Index of the next group of the first long batch."""
        self._num_groups_out = 0
        self._num_short_in_a_row = 0

    def add_short(self, job: LaunchedBatch) -> None:
        """Add a batch that is launched as a whole."""
        self._short.append(job)

    def add_long(self, job: LaunchedBatch, num_groups: int, *, is_query: bool) -> None:
        """Add a batch that is launched in groups; a query goes before batches not started."""
        if is_query and self._long:
            self._long.insert(1 if self._next_group else 0, (job, num_groups))
        else:
            self._long.append((job, num_groups))

    def next(self) -> Turn[LaunchedBatch] | None:
        """Return what to launch now; None if that needs another `add` or `finish` first."""
        has_turn = not self._long or self._num_short_in_a_row < MAX_SHORT_IN_A_ROW
        if self._short and has_turn:
            self._num_short_in_a_row += 1
            return Turn(self._short.popleft(), None, is_last=True)
        if not self._long or self._num_groups_out == MAX_GROUPS_OUT:
            return None
        self._num_short_in_a_row = 0
        self._num_groups_out += 1
        (job, num_groups), group = self._long[0], self._next_group
        self._next_group = (group + 1) % num_groups
        is_last = self._next_group == 0
        if is_last:
            self._long.popleft()
        return Turn(job, group, is_last)

    def finish(self, turn: Turn[LaunchedBatch]) -> None:
        """Record that the device has finished a turn."""
        if turn.group is not None:
            self._num_groups_out -= 1

    def drop(self, turn: Turn[LaunchedBatch]) -> None:
        """Remove the rest of a batch whose turn could not be launched."""
        if turn.group is not None:
            self._num_groups_out -= 1
            if not turn.is_last:
                self._long.popleft()
                self._next_group = 0
