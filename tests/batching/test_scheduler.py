from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedlib.batching.policy import DEFAULT_POLICY
from embedlib.batching.scheduler import Scheduler
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.engines.base import EngineLimits, Lane

LIMITS = EngineLimits(
    embedding_dim=1,
    is_padded=True,
    max_batch_tokens=12,
    num_parallel_batches=1,
    max_inflight_batches=3,
    max_inflight_bulk=2,
)
IDS = count()
LENGTHS = st.lists(st.integers(1, 20), max_size=60)


def sequences(lengths: list[int], lane: Lane = Lane.BULK) -> list[TokenizedText]:
    """One job with a sequence of each length; no two are equal."""
    job = Job(len(lengths), 1, lane)
    return [TokenizedText(job, row, [next(IDS)] * length) for row, length in enumerate(lengths)]


def drain(scheduler: Scheduler) -> list[list[TokenizedText]]:
    """Every batch of an engine that computes one at a time."""
    batches = []
    while batch := scheduler.next_batch(0, 0):
        batches.append(batch)
    return batches


def cost(batch: list[TokenizedText], is_padded: bool) -> int:
    lengths = [sequence.num_tokens for sequence in batch]
    return max(lengths) * len(lengths) if is_padded else sum(lengths)


@pytest.mark.parametrize(
    ("lane", "is_padded", "lengths", "batches"),
    [
        (Lane.BULK, True, [], []),
        (Lane.BULK, True, [5], [[5]]),
        (Lane.BULK, True, [3, 3, 3, 3, 3], [[3, 3, 3, 3], [3]]),
        # Longest first, so that what is padded together is alike.
        (Lane.BULK, True, [1, 6, 2, 5, 1], [[6, 5], [2, 1, 1]]),
        (
            Lane.BULK,
            False,
            [1, 6, 2, 5, 1],
            [
                [
                    6,
                    5,
                ],
                [2, 1, 1],
            ],
        ),
        (Lane.BULK, False, [1, 6, 2, 4, 1], [[6, 4, 2], [1, 1]]),
        # What is longer than the budget goes alone.
        (Lane.BULK, True, [2, 50, 3], [[50], [3, 2]]),
        (Lane.BULK, True, [13, 12], [[13], [12]]),
        # So do the queries of one call.
        (Lane.QUERY, True, [1, 6, 2, 5, 1], [[6, 5], [2, 1, 1]]),
        (Lane.QUERY, True, [2, 50], [[50], [2]]),
    ],
)
def test_lengths_to_batches(
    lane: Lane, is_padded: bool, lengths: list[int], batches: list[list[int]]
) -> None:
    scheduler = Scheduler(replace(LIMITS, is_padded=is_padded))
    scheduler.add(sequences(lengths, lane))
    cut = [[sequence.num_tokens for sequence in batch] for batch in drain(scheduler)]
    assert cut == batches


@pytest.mark.parametrize(
    ("is_padded", "batches"),
    [(True, [[1, 6], [2, 5], [1]]), (False, [[1, 6, 2], [5, 1]])],
)
def test_calls_with_one_query_each_are_computed_in_their_order(
    is_padded: bool, batches: list[list[int]]
) -> None:
    scheduler = Scheduler(replace(LIMITS, is_padded=is_padded))
    for length in [1, 6, 2, 5, 1]:
        scheduler.add(sequences([length], Lane.QUERY))
    assert [[item.num_tokens for item in batch] for batch in drain(scheduler)] == batches


@pytest.mark.parametrize(
    ("lane", "calls", "batches"),
    [
        (Lane.BULK, [[100, 80]], [[100, 80]]),
        (Lane.BULK, [[100, 79]], [[100], [79]]),
        # It is the padding of all that would follow which counts, as far as they would fit.
        (Lane.BULK, [[100, 95, 95, 95, 95]], [[100, 95, 95, 95, 95]]),
        (Lane.BULK, [[100, 94, 94, 94, 94]], [[100], [94, 94, 94, 94]]),
        (Lane.BULK, [[250, 235, 3, 3, 3]], [[250, 235], [3, 3, 3]]),
        (Lane.BULK, [[100, 100, 60, 59, 50]], [[100, 100], [60, 59, 50]]),
        # Nobody knows how long the queries are that other callers have behind it.
        (Lane.QUERY, [[9], [29]], [[9, 29]]),
        (Lane.QUERY, [[9], [30]], [[9], [30]]),
        (Lane.QUERY, [[9], [9], [20]], [[9, 9], [20]]),
        (Lane.QUERY, [[30], [9], [9]], [[30], [9, 9]]),
    ],
)
def test_what_would_be_padded_much_is_computed_apart(
    lane: Lane, calls: list[list[int]], batches: list[list[int]]
) -> None:
    scheduler = Scheduler(replace(LIMITS, max_batch_tokens=500))
    packed = Scheduler(replace(LIMITS, max_batch_tokens=500, is_padded=False))
    for lengths in calls:
        scheduler.add(sequences(lengths, lane))
        packed.add(sequences(lengths, lane))
    assert [[item.num_tokens for item in batch] for batch in drain(scheduler)] == batches
    assert len(drain(packed)) == 1 + (sum(sum(lengths) for lengths in calls) > 500)


@given(
    bulk=LENGTHS,
    queries=LENGTHS,
    is_padded=st.booleans(),
    budget=st.integers(1, 40),
    num_parallel=st.integers(1, 4),
)
def test_no_batch_passes_the_budget_and_nothing_is_lost_or_doubled(
    bulk: list[int], queries: list[int], is_padded: bool, budget: int, num_parallel: int
) -> None:
    scheduler = Scheduler(
        replace(
            LIMITS,
            is_padded=is_padded,
            max_batch_tokens=budget,
            num_parallel_batches=num_parallel,
        )
    )
    given = sequences(bulk) + sequences(queries, Lane.QUERY)
    scheduler.add(given)
    batches = drain(scheduler)
    assert Counter(map(id, given)) == Counter(id(item) for batch in batches for item in batch)
    for batch in batches:
        assert len({item.job.lane for item in batch}) == 1
        assert len(batch) == 1 or cost(batch, is_padded) <= budget
    assert [scheduler.num_waiting(lane) for lane in Lane] == [0, 0]


@given(data=st.data(), lengths=LENGTHS.filter(bool), lane=st.sampled_from(Lane))
def test_cancelled_jobs_are_not_computed(
    data: st.DataObject, lengths: list[int], lane: Lane
) -> None:
    scheduler = Scheduler(LIMITS)
    singles = [sequences([length], lane)[0] for length in lengths]
    scheduler.add(singles)
    gone = data.draw(st.sets(st.sampled_from(range(len(singles)))))
    for index in gone:
        singles[index].job.future.cancel()
    computed = {id(item) for batch in drain(scheduler) for item in batch}
    kept = {id(item) for index, item in enumerate(singles) if index not in gone}
    assert computed == kept


def test_cancelled_while_in_the_window() -> None:
    scheduler = Scheduler(LIMITS)
    first, second = sequences([12]), sequences([3])
    scheduler.add(first + second)
    assert scheduler.next_batch(0, 0) == first
    second[0].job.future.cancel()
    assert scheduler.next_batch(0, 0) == []


def test_windows_of_callers_who_have_gone_do_not_hold_up_what_is_behind() -> None:
    scheduler = Scheduler(LIMITS)
    gone = sequences([3] * (3 * DEFAULT_POLICY.window_seqs))
    wanted = sequences([5])
    scheduler.add(gone)
    scheduler.add(wanted)
    gone[0].job.future.cancel()
    assert scheduler.next_batch(0, 0) == wanted


def test_a_failed_job_is_not_computed_further() -> None:
    scheduler = Scheduler(LIMITS)
    given = sequences([12, 12, 12])
    scheduler.add(given)
    scheduler.next_batch(0, 0)
    given[0].job.fail(ValueError())
    assert drain(scheduler) == []


def test_queries_go_before_bulk() -> None:
    scheduler = Scheduler(LIMITS)
    bulk, queries = sequences([5, 5]), sequences([3, 2], Lane.QUERY)
    scheduler.add(bulk)
    scheduler.add(queries)
    assert scheduler.next_batch(0, 0) == queries
    assert scheduler.next_batch(1, 0) == bulk[::-1]


def test_bulk_gets_its_turn_in_a_stream_of_queries_that_never_ends() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(sequences([12] * 5))
    lanes = []
    for _ in range(60):
        scheduler.add(sequences([12], Lane.QUERY))
        lanes.append(scheduler.next_batch(0, 0)[0].job.lane)
    turns = [index for index, lane in enumerate(lanes) if lane is Lane.BULK]
    # One bulk batch after every streak of queries, until the five are done.
    assert turns == [
        DEFAULT_POLICY.max_query_streak + turn * (DEFAULT_POLICY.max_query_streak + 1)
        for turn in range(5)
    ]


@pytest.mark.parametrize(("num_waiting", "num_computed"), [(0, 0), (5, 1)])
def test_queries_wait_for_no_bulk_that_is_not_there_or_being_computed(
    num_waiting: int, num_computed: int
) -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(sequences([12] * num_waiting))
    for _ in range(60):
        scheduler.add(sequences([12], Lane.QUERY))
        assert scheduler.next_batch(0, num_computed)[0].job.lane is Lane.QUERY


def test_queries_that_would_wait_in_front_of_the_engine_wait_for_others_to_join() -> None:
    limits = replace(LIMITS, max_inflight_batches=4)
    scheduler = Scheduler(limits)
    for num_inflight in range(limits.max_inflight_queries):
        scheduler.add(sequences([1], Lane.QUERY))
        assert len(scheduler.next_batch(num_inflight, 0)) == 1
    for _ in range(3):
        scheduler.add(sequences([1], Lane.QUERY))
        assert not scheduler.next_batch(limits.max_inflight_queries, 0)
    assert len(scheduler.next_batch(limits.max_inflight_queries - 1, 0)) == 3


def test_an_engine_that_reserves_nothing_for_queries_gets_as_many_of_them_as_it_takes() -> None:
    assert replace(LIMITS, max_inflight_batches=2).max_inflight_queries == 2
    assert replace(LIMITS, max_inflight_batches=9).max_inflight_queries == 7


@pytest.mark.parametrize(
    ("num_queries", "num_bulk", "lanes"),
    [
        (0, 0, {Lane.QUERY, Lane.BULK}),
        (0, 2, {Lane.QUERY}),
        (1, 1, {Lane.BULK}),
        (2, 0, {Lane.BULK}),
        (1, 2, set()),
        (3, 0, set()),
        (0, 3, set()),
    ],
)
def test_the_engine_is_given_no_more_than_it_takes(
    num_queries: int, num_bulk: int, lanes: set[Lane]
) -> None:
    for lane in Lane:
        scheduler = Scheduler(LIMITS)
        scheduler.add(sequences([12] * 4, lane))
        assert bool(scheduler.next_batch(num_queries, num_bulk)) is (lane in lanes)
        # What is tried again is no exception.
        scheduler = Scheduler(LIMITS)
        scheduler.retry(sequences([12] * 4, lane))
        assert bool(scheduler.next_batch(num_queries, num_bulk)) is (lane in lanes)


@given(
    arrivals=st.lists(st.tuples(st.sampled_from(Lane), st.lists(st.integers(1, 20), max_size=9))),
    data=st.data(),
)
def test_limits_hold_whatever_comes_and_whenever_it_ends(
    arrivals: list[tuple[Lane, list[int]]], data: st.DataObject
) -> None:
    scheduler = Scheduler(LIMITS)
    inflight: list[list[TokenizedText]] = []
    computed: list[TokenizedText] = []
    waiting: list[TokenizedText] = []

    def finish() -> None:
        batch = inflight.pop(data.draw(st.integers(0, len(inflight) - 1)))
        if len(batch) > 1 and data.draw(st.booleans()):  # out of memory
            scheduler.retry(batch)
        else:
            computed.extend(batch)

    def fill() -> None:
        while True:
            num_bulk = sum(batch[0].job.lane is Lane.BULK for batch in inflight)
            batch = scheduler.next_batch(len(inflight) - num_bulk, num_bulk)
            if not batch:
                return
            inflight.append(batch)
            num_bulk += batch[0].job.lane is Lane.BULK
            assert len(inflight) <= LIMITS.max_inflight_batches
            assert num_bulk <= LIMITS.max_inflight_bulk
            assert len(inflight) - num_bulk <= LIMITS.max_inflight_queries

    for lane, lengths in arrivals:
        arrived = sequences(lengths, lane)
        waiting += arrived
        scheduler.add(arrived)
        fill()
        if inflight and data.draw(st.booleans()):
            finish()
            fill()
    while inflight:
        finish()
        fill()
    assert Counter(map(id, computed)) == Counter(map(id, waiting))


def test_a_short_text_is_overtaken_by_one_window_at_most() -> None:
    scheduler = Scheduler(LIMITS)
    short = sequences([1])
    scheduler.add(short)
    overtaken = 0
    while True:  # longer ones keep coming, for ever
        scheduler.add(sequences([12] * 3))
        batch = scheduler.next_batch(0, 0)
        if batch[0] is short[0] or short[0] in batch:
            break
        overtaken += len(batch)
        assert overtaken < DEFAULT_POLICY.window_seqs
    assert overtaken > 0


def test_a_long_queue_is_cut_window_by_window() -> None:
    scheduler = Scheduler(LIMITS)
    first, second = sequences([1] * DEFAULT_POLICY.window_seqs), sequences([12] * 5)
    scheduler.add(first + second)
    batches = drain(scheduler)
    assert {id(item) for batch in batches[-5:] for item in batch} == set(map(id, second))


def test_an_engine_says_how_much_padding_another_batch_is_worth() -> None:
    for most, num_batches in [(39, 2), (40, 1)]:
        scheduler = Scheduler(replace(LIMITS, max_batch_tokens=500, max_padding_tokens=most))
        scheduler.add(sequences([100, 60]))
        assert len(drain(scheduler)) == num_batches


def test_the_padding_of_all_queries_of_a_batch_is_bounded() -> None:
    scheduler = Scheduler(replace(LIMITS, max_batch_tokens=1000, max_padding_tokens=150))
    scheduler.add(sequences([160, *[10] * 5], Lane.QUERY))
    scheduler.add(sequences([100], Lane.QUERY))
    found = [[item.num_tokens for item in batch] for batch in drain(scheduler)]
    assert found == [[160, 10], [10] * 4, [100]]


def test_mixed_lengths_are_hardly_padded() -> None:
    scheduler = Scheduler(replace(LIMITS, max_batch_tokens=768))
    lengths = [4 + (row * 97) % 253 for row in range(4 * DEFAULT_POLICY.window_seqs)]
    scheduler.add(sequences(lengths))
    computed = sum(cost(batch, is_padded=True) for batch in drain(scheduler))
    assert 1 - sum(lengths) / computed < 0.02


@pytest.mark.parametrize(("num_inflight", "num_batches"), [(0, 4), (1, 3), (2, 2), (3, 1)])
def test_a_small_job_is_spread_over_the_streams_that_are_free(
    num_inflight: int, num_batches: int
) -> None:
    limits = replace(
        LIMITS,
        max_batch_tokens=4096,
        num_parallel_batches=4,
        max_inflight_batches=9,
        max_inflight_bulk=9,
    )
    scheduler = Scheduler(limits)
    scheduler.add(sequences([16] * 64))
    sizes = []
    while batch := scheduler.next_batch(0, num_inflight + len(sizes)):
        sizes.append(len(batch))
    assert len(sizes) == num_batches
    assert max(sizes) - min(sizes) <= 2
    assert sum(sizes) == 64


def test_a_job_too_small_to_share_stays_in_one_batch() -> None:
    scheduler = Scheduler(replace(LIMITS, max_batch_tokens=4096, num_parallel_batches=4))
    scheduler.add(sequences([DEFAULT_POLICY.min_split_tokens // 8] * 8))
    assert [len(batch) for batch in drain(scheduler)] == [8]


@pytest.mark.parametrize(
    ("num_streams", "lengths", "num_inflight", "expected"),
    [
        (2, [64], 0, [Lane.QUERY]),
        (2, [60, 4], 0, [Lane.BULK, Lane.BULK]),  # two batches, or 4 would be padded to 60
        (2, [32, 32], 0, [Lane.QUERY]),
        (2, [32, 33], 0, [Lane.BULK, Lane.BULK]),  # enough for both streams
        (2, [65], 0, [Lane.BULK]),
        (2, [64], 1, [Lane.BULK]),
        (4, [32, 33], 0, [Lane.QUERY]),
        (1, [8], 0, [Lane.BULK]),  # one stream has all cores anyway
    ],
)
def test_few_tokens_that_come_alone_are_computed_as_a_query(
    num_streams: int, lengths: list[int], num_inflight: int, expected: list[Lane]
) -> None:
    limits = replace(
        LIMITS, max_batch_tokens=512, num_parallel_batches=num_streams, max_inflight_bulk=9
    )
    scheduler = Scheduler(replace(limits, max_inflight_batches=9))
    scheduler.add(sequences(lengths))
    lanes: list[Lane] = []
    while batch := scheduler.next_batch(0, num_inflight + len(lanes)):
        lanes.append(scheduler.engine_lane_for(batch, num_inflight + len(lanes)))
    assert lanes == expected


def test_a_batch_that_did_not_fit_comes_back_in_halves_that_are_not_joined() -> None:
    scheduler = Scheduler(LIMITS)
    given = sequences([2] * 5)
    scheduler.retry(given)
    assert drain(scheduler) == [given[:2], given[2:]]


@pytest.mark.parametrize("lane", Lane)
def test_halves_whose_callers_have_gone_are_dropped(lane: Lane) -> None:
    scheduler = Scheduler(LIMITS)
    gone, kept = sequences([2, 2], lane), sequences([2], lane)
    scheduler.retry([*gone, *kept])
    gone[0].job.future.cancel()
    assert drain(scheduler) == [kept]


def test_a_query_does_not_wait_for_bulk_that_is_tried_again() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.retry(sequences([2] * 4))
    queries = sequences([2], Lane.QUERY)
    scheduler.add(queries)
    assert scheduler.next_batch(0, 0) == queries


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("lane", Lane)
def test_a_batch_for_which_there_is_no_memory_is_not_lost(
    lane: Lane, is_retried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, given, asked = Scheduler(LIMITS), sequences([2] * 4, lane), count()

    def fail(_: Job) -> bool:
        if next(asked):
            raise MemoryError
        return False

    (scheduler.retry if is_retried else scheduler.add)(given)
    monkeypatch.setattr(Job, "is_over", property(fail))
    with pytest.raises(MemoryError):
        scheduler.next_batch(0, 0)
    assert set(map(id, scheduler.clear())) == set(map(id, given))


def test_clear_returns_everything_that_waits() -> None:
    scheduler = Scheduler(LIMITS)
    tried = sequences([2, 2])
    waiting = [*sequences([12, 3]), *sequences([4], Lane.QUERY)]
    scheduler.add(waiting)
    assert scheduler.next_batch(0, 0) == waiting[2:]
    assert scheduler.next_batch(1, 0) == waiting[:1]  # the other one is in the window now
    scheduler.retry(tried)
    later = sequences([5])
    scheduler.add(later)
    assert set(map(id, scheduler.clear())) == set(map(id, [waiting[1], *tried, *later]))
    assert drain(scheduler) == []
    assert [scheduler.num_waiting(lane) for lane in Lane] == [0, 0]


def test_num_waiting_counts_what_was_not_handed_out() -> None:
    scheduler = Scheduler(LIMITS)
    scheduler.add(sequences([12, 12, 12]))
    scheduler.add(sequences([12, 12], Lane.QUERY))
    assert [scheduler.num_waiting(lane) for lane in (Lane.QUERY, Lane.BULK)] == [2, 3]
    scheduler.next_batch(0, 0)
    assert [scheduler.num_waiting(lane) for lane in (Lane.QUERY, Lane.BULK)] == [1, 3]
    scheduler.next_batch(0, 0)
    scheduler.next_batch(0, 0)
    assert [scheduler.num_waiting(lane) for lane in (Lane.QUERY, Lane.BULK)] == [0, 2]
