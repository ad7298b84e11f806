"""The policy against a device that is a clock: what was launched runs in order, one at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from embedlib.engines.cuda.turns import MAX_GROUPS_OUT, MAX_SHORT_IN_A_ROW, Turn, Turns

NUM_GROUPS = 16
GROUP_MS = 6.0
QUERY_MS = 2.5


@dataclass
class FakeDevice:
    """Runs turns one behind the other; its clock moves when one ends."""

    turns: Turns[str] = field(default_factory=lambda: Turns(NUM_GROUPS))
    now: float = 0.0
    queue: deque[tuple[Turn[str], float]] = field(default_factory=deque)
    """What was launched and has not ended, and when it will."""
    done: list[tuple[str, float]] = field(default_factory=list)
    """Batches in the order of their ends."""
    order: list[tuple[str, int | None]] = field(default_factory=list)

    def launch(self) -> None:
        """Launch all that the policy allows."""
        while (turn := self.turns.next()) is not None:
            took = QUERY_MS if turn.group is None else GROUP_MS
            start = self.queue[-1][1] if self.queue else self.now
            self.queue.append((turn, start + took))
            self.order.append((turn.job, turn.group))

    def run_until(self, end: float) -> None:
        """Let the device work, and launch whenever something ends."""
        self.launch()
        while self.queue and self.queue[0][1] <= end:
            turn, self.now = self.queue.popleft()
            self.turns.finish(turn)
            if turn.is_last:
                self.done.append((turn.job, self.now))
            self.launch()
        self.now = end

    def end_of(self, job: str) -> float:
        return dict(self.done)[job]


def test_a_long_batch_runs_group_by_group_and_never_stops_the_device() -> None:
    device = FakeDevice()
    for job in ("a", "b"):
        device.turns.add_long(job, is_query=False)
    device.launch()
    assert device.order == [("a", 0), ("a", 1)]  # one running, one behind it
    device.run_until(1000)
    assert device.order == [(job, group) for job in "ab" for group in range(NUM_GROUPS)]
    assert device.done == [("a", NUM_GROUPS * GROUP_MS), ("b", 2 * NUM_GROUPS * GROUP_MS)]


@pytest.mark.parametrize("when", [0.1, 5.9, 6.1, 47.0, 95.0])
def test_a_query_waits_for_two_groups_at_most(when: float) -> None:
    device = FakeDevice()
    device.turns.add_long("bulk", is_query=False)
    device.run_until(when)
    device.turns.add_short("query")
    device.run_until(1000)
    assert device.end_of("query") - when <= MAX_GROUPS_OUT * GROUP_MS + QUERY_MS
    assert device.end_of("bulk") <= NUM_GROUPS * GROUP_MS + QUERY_MS


def test_queries_that_never_end_do_not_stop_a_backfill() -> None:
    device = FakeDevice()
    device.turns.add_long("bulk", is_query=False)
    for number in range(200):
        device.turns.add_short(f"query {number}")
    device.run_until(10_000)
    names = [name for name, _ in device.order]
    places = [index for index, name in enumerate(names) if name == "bulk"]
    assert names[:3] == ["query 0", "query 1", "bulk"]
    gaps = [after - before for before, after in pairwise(places)]
    assert max(gaps) == MAX_SHORT_IN_A_ROW + 1
    assert device.end_of("bulk") <= NUM_GROUPS * (GROUP_MS + MAX_SHORT_IN_A_ROW * QUERY_MS)
    assert len(device.done) == 201


def test_queries_alone_go_one_behind_the_other() -> None:
    device = FakeDevice()
    for job in "abc":
        device.turns.add_short(job)
    device.launch()
    assert device.order == [("a", None), ("b", None), ("c", None)]


def test_a_long_query_goes_before_batches_not_begun() -> None:
    device = FakeDevice()
    for job in ("first", "second"):
        device.turns.add_long(job, is_query=False)
    device.launch()
    device.turns.add_long("query", is_query=True)
    device.run_until(1000)
    assert [job for job, _ in device.done] == ["first", "query", "second"]
    turns: Turns[str] = Turns(2)
    turns.add_long("bulk", is_query=False)
    turns.add_long("query", is_query=True)
    turn = turns.next()
    assert turn is not None
    assert turn.job == "query"


def test_the_rest_of_a_batch_that_failed_is_not_launched() -> None:
    turns: Turns[str] = Turns(3)
    for job in ("broken", "next"):
        turns.add_long(job, is_query=False)
    first = turns.next()
    assert first is not None
    turns.drop(first)
    others = [turns.next(), turns.next()]
    assert [(turn.job, turn.group) for turn in others if turn] == [("next", 0), ("next", 1)]
    assert turns.next() is None
    turns.finish(others[0])  # type: ignore[arg-type]
    last = turns.next()
    assert last == Turn("next", 2, is_last=True)
    turns.drop(last)
    turns.finish(others[1])  # type: ignore[arg-type]
    turns.add_long("after", is_query=False)
    assert turns.next() == Turn("after", 0, is_last=False)


def test_nothing_to_do_is_nothing() -> None:
    turns: Turns[str] = Turns(2)
    assert turns.next() is None
