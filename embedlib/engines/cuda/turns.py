"""Whose kernels are launched next, so that a query never waits for a whole bulk batch.

A kernel that runs cannot be stopped, and a stream of higher priority only gets the places that
running kernels give back. So a long batch is launched a group (`groups`) at a time, and never more
than one group ahead of the one that runs: a query that comes then waits for what is left of two
groups, some milliseconds, runs, and the long batch goes on where it was, which may be in the middle
of a layer. Its activations stay where they are, and no weight is loaded twice for it.

After two short batches a waiting long one gets a group, so queries that follow one another closely
cannot stop a backfill.

This is pure policy: no device, no thread, no clock. The caller tells what was added and what the
device has finished, and asks what to launch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Job = TypeVar("Job")

MAX_GROUPS_OUT: Final = 2
"""Groups of long batches launched and not finished: one that runs and one behind it, without which
the device would be idle between two."""
MAX_SHORT_IN_A_ROW: Final = 2
"""Short batches between two groups, while a long batch waits."""


@dataclass(frozen=True)
class Turn(Generic[Job]):
    """Something to launch: a short batch, or one group of a long one."""

    job: Job
    group: int | None
    """None: the whole of a short batch."""
    is_last: bool
    """Whether the batch's result is behind it."""


class Turns(Generic[Job]):
    """Decides; see the module."""

    def __init__(self) -> None:
        """Make the policy; nothing waits."""
        self._short: deque[Job] = deque()
        self._long: deque[tuple[Job, int]] = deque()
        """Batches and how many groups they have."""
        self._next_group = 0
        """Of the first long batch."""
        self._num_groups_out = 0
        self._num_short_in_a_row = 0

    def add_short(self, job: Job) -> None:
        """Take a batch that is launched as one."""
        self._short.append(job)

    def add_long(self, job: Job, num_groups: int, *, is_query: bool) -> None:
        """Take a batch that is launched in groups; a query goes before batches not begun."""
        if is_query and self._long:
            self._long.insert(1 if self._next_group else 0, (job, num_groups))
        else:
            self._long.append((job, num_groups))

    def next(self) -> Turn[Job] | None:
        """Return what to launch now; None: nothing, until more is added or finished."""
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

    def finish(self, turn: Turn[Job]) -> None:
        """Hear that the device has finished a turn."""
        if turn.group is not None:
            self._num_groups_out -= 1

    def drop(self, turn: Turn[Job]) -> None:
        """Forget the rest of a batch whose turn could not be launched."""
        if turn.group is not None:
            self._num_groups_out -= 1
            if not turn.is_last:
                self._long.popleft()
                self._next_group = 0
