"""The policy, on a simulated device that runs launches in order, one at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.engines.base import Lane
from embedlib.engines.cuda.groups import MAX_GROUP_WORK, groups_of
from embedlib.engines.cuda.inputs import fill, layout_of, split, tile_queries
from embedlib.engines.cuda.lowering import build_plan
from embedlib.engines.cuda.plan import Attend
from embedlib.engines.cuda.turns import (
    MAX_GROUPS_OUT,
    MAX_QUERIES_IN_A_ROW,
    MAX_SHORT_IN_A_ROW,
    Turn,
    Turns,
)
from embedlib.models.weights.tensor_roles import linear_roles
from embedlib.testing import make_batch
from tests.acceptance.gpu.models import SHAPES
from tests.acceptance.gpu.texts import texts_of

NUM_GROUPS = 16
GROUP_MS = 6.0
QUERY_MS = 2.5
OPERATIONS_PER_S = 780e12
"""Speed of a bfloat16 matrix product on an H200; the bound is chosen for it."""


@dataclass
class FakeDevice:
    """Runs turns one after the other; its clock advances when one ends."""

    turns: Turns[str] = field(default_factory=Turns)
    now: float = 0.0
    queue: deque[tuple[Turn[str], float]] = field(default_factory=deque)
    """Turns launched and not finished, with the time when each ends."""
    done: list[tuple[str, float]] = field(default_factory=list)
    """Batches in the order in which they finished, with the time."""
    order: list[tuple[str, int | None]] = field(default_factory=list)

    group_ms: Sequence[float] = (GROUP_MS,) * NUM_GROUPS

    def launch(self) -> None:
        """Launch all turns that the policy allows."""
        while (turn := self.turns.next()) is not None:
            took = QUERY_MS if turn.group is None else self.group_ms[turn.group]
            start = self.queue[-1][1] if self.queue else self.now
            self.queue.append((turn, start + took))
            self.order.append((turn.job, turn.group))

    def run_until(self, end: float) -> None:
        """Advance the device to a time; launch whenever a turn ends."""
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
        device.turns.add_long(job, NUM_GROUPS, is_query=False)
    device.launch()
    assert device.order == [("a", 0), ("a", 1)]  # one running, one queued after it
    device.run_until(1000)
    assert device.order == [(job, group) for job in "ab" for group in range(NUM_GROUPS)]
    assert device.done == [("a", NUM_GROUPS * GROUP_MS), ("b", 2 * NUM_GROUPS * GROUP_MS)]


@pytest.mark.parametrize("when", [0.1, 5.9, 6.1, 47.0, 95.0])
def test_a_query_waits_for_two_groups_at_most(when: float) -> None:
    device = FakeDevice()
    device.turns.add_long("bulk", NUM_GROUPS, is_query=False)
    device.run_until(when)
    device.turns.add_short("query")
    device.run_until(1000)
    assert device.end_of("query") - when <= MAX_GROUPS_OUT * GROUP_MS + QUERY_MS
    assert device.end_of("bulk") <= NUM_GROUPS * GROUP_MS + QUERY_MS


def long_text_ms() -> list[float]:
    """Return the time of each group of a 32,000-token text, for a model with 7e9 parameters."""
    spec = SHAPES["bge-en-icl"].spec
    plan = build_plan(spec, linear_roles(spec.encoder))
    batch = make_batch(texts_of([32_000], spec.encoder.vocab_size), Lane.BULK)
    layout = layout_of(
        batch, plan.pooled_modes, tile_queries(spec.encoder, is_short=False, itemsize=2)
    )
    values = np.empty(layout.size, np.int32)
    fill(values, batch, layout, spec, plan.pooled_modes)
    parts = split(values, layout)
    groups = groups_of(plan.steps, layout, parts, batch.seq_lens, spec.encoder, ())
    cuts = Counter(part.step for group in groups for part in group if part.cut)
    # All layers except the last, which has one query, share one attention step.
    assert cuts[next(step for step in plan.steps if isinstance(step, Attend))] == 31 * 18
    return [1e3 * sum(part.work for part in group) / OPERATIONS_PER_S for group in groups]


LONG_TEXT_MS = long_text_ms()


@pytest.mark.parametrize("share", [0.0, 0.013, 0.5, 0.501, 0.77, 0.999])
def test_a_query_beside_a_long_text_waits_for_the_bound(share: float) -> None:
    device = FakeDevice(group_ms=LONG_TEXT_MS)
    device.turns.add_long("text", len(LONG_TEXT_MS), is_query=False)
    when = share * sum(LONG_TEXT_MS)
    device.run_until(when)
    device.turns.add_short("query")
    device.run_until(10_000)
    bound = MAX_GROUPS_OUT * MAX_GROUP_WORK / OPERATIONS_PER_S * 1e3
    assert bound < 3
    assert device.end_of("query") - when <= bound + QUERY_MS
    assert device.end_of("text") <= sum(LONG_TEXT_MS) + QUERY_MS + 1e-6


def test_queries_that_never_end_do_not_stop_a_backfill() -> None:
    device = FakeDevice()
    device.turns.add_long("bulk", NUM_GROUPS, is_query=False)
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
        device.turns.add_long(job, NUM_GROUPS, is_query=False)
    device.launch()
    device.turns.add_long("query", NUM_GROUPS, is_query=True)
    device.run_until(1000)
    assert [job for job, _ in device.done] == ["first", "query", "second"]
    turns: Turns[str] = Turns()
    turns.add_long("bulk", 2, is_query=False)
    turns.add_long("query", 2, is_query=True)
    turn = turns.next()
    assert turn is not None
    assert turn.job == "query"


def test_long_queries_begin_in_order_and_bulk_after_two_of_them() -> None:
    device = FakeDevice(group_ms=(GROUP_MS,) * 2)
    device.turns.add_long("bulk 0", 2, is_query=False)
    device.turns.add_long("bulk 1", 2, is_query=False)
    for number in range(6):
        device.turns.add_long(f"query {number}", 2, is_query=True)
    device.run_until(1000)
    assert [job for job, _ in device.done] == [
        *("query 0", "query 1", "bulk 0", "query 2", "query 3", "bulk 1", "query 4", "query 5")
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["short", "query", "query", "bulk"]), st.integers(1, 3))),
    st.integers(1, 6),
)
def test_no_batch_waits_for_more_than_a_bounded_number_of_later_ones(
    drawn: list[tuple[str, int]], most: int
) -> None:
    """At most `most` are in flight, as under load; queries follow one another without end."""
    turns: Turns[tuple[str, int]] = Turns()
    out: deque[Turn[tuple[str, int]]] = deque()
    waiting: dict[tuple[str, int], Counter[str]] = {}
    """Batches not begun, and how many came later and have begun before, by their kind."""
    most_later: dict[tuple[str, int], dict[str, int]] = {}
    num_open = 0
    for number, (kind, num_groups) in enumerate([*drawn, *[("query", 2)] * 40]):
        job = kind, number
        ahead = Counter(other for other, _ in waiting)
        waiting[job] = Counter()
        num_longs = 1 + ahead["query"] + ahead["bulk"]
        longs = num_longs * (1 + MAX_QUERIES_IN_A_ROW)
        most_later[job] = {
            "short": MAX_SHORT_IN_A_ROW * 3 * longs,
            "query": MAX_QUERIES_IN_A_ROW * (1 + ahead["bulk"]),
            "bulk": 1 + ahead["query"] // MAX_QUERIES_IN_A_ROW,
        } | {kind: 0}
        if kind == "short":
            turns.add_short(job)
        else:
            turns.add_long(job, num_groups, is_query=kind == "query")
        num_open += 1
        while True:
            while (turn := turns.next()) is not None:
                out.append(turn)
                if turn.group:
                    continue
                del waiting[turn.job]
                for other, later in waiting.items():
                    later[turn.job[0]] += other[1] < turn.job[1]
                    assert all(later[kind] <= most_later[other][kind] for kind in later)
            if num_open < most:
                break
            turn = out.popleft()
            turns.finish(turn)
            num_open -= turn.is_last


def test_the_rest_of_a_batch_that_failed_is_not_launched() -> None:
    turns: Turns[str] = Turns()
    for job in ("broken", "next"):
        turns.add_long(job, 3, is_query=False)
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
    turns.add_long("after", 3, is_query=False)
    assert turns.next() == Turn("after", 0, is_last=False)


def test_nothing_to_do_is_nothing() -> None:
    turns: Turns[str] = Turns()
    assert turns.next() is None
