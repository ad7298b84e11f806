"""Equal sequences are computed once, and none of them notices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.batching.manager import BatchManager
from embedlib.batching.scheduler import Scheduler
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.twins import Distinct
from embedlib.engines.base import Lane
from embedlib.errors import EngineRunError
from embedlib.testing import FAKE_DIM, FakeEngine, fake_vector
from tests.ending import end
from tests.waiting import WAIT_SECONDS, error_of


def start(engine: FakeEngine) -> BatchManager:
    return BatchManager(engine, Meter(lambda: 0.0), max_queued_texts=1000)


def make(
    ids: list[list[int]], lane: Lane = Lane.BULK, dim: int | None = FAKE_DIM
) -> list[TokenizedText]:
    job = Job(len(ids), dim, lane)
    return [TokenizedText(job, row, item) for row, item in enumerate(ids)]


def add(manager: BatchManager, ids: list[list[int]], lane: Lane) -> Job:
    sequences = make(ids, lane)
    (manager.add_queries if lane is Lane.QUERY else manager.add_bulk)(sequences)
    return sequences[0].job


IDS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=30)


@settings(deadline=None, max_examples=30)
@given(jobs=st.lists(st.tuples(st.sampled_from(Lane), IDS), max_size=6), is_padded=st.booleans())
def test_every_job_gets_its_own_rows(
    jobs: list[tuple[Lane, list[list[int]]]], is_padded: bool
) -> None:
    engine = FakeEngine(max_batch_tokens=9, is_padded=is_padded)
    manager = start(engine)
    waiting = [(ids, add(manager, ids, lane)) for lane, ids in jobs]
    for ids, job in waiting:
        rows = job.future.result(WAIT_SECONDS)
        np.testing.assert_array_equal(rows, [fake_vector(item) for item in ids])
    end(manager)
    stats = manager._meter.read()
    assert stats.num_tokens == sum(len(item) for ids, _ in waiting for item in ids)
    assert 0 <= stats.padding_share < 1
    for batch in engine.batches:
        kinds = np.split(batch.token_ids, batch.cu_seqlens[1:-1])
        assert len({tuple(kind) for kind in kinds}) == batch.num_seqs


@given(IDS, st.integers(4, 12))
def test_twins_of_a_window_share_a_batch_and_cost_it_nothing(
    ids: list[list[int]], budget: int
) -> None:
    limits = replace(FakeEngine(max_batch_tokens=budget).limits, is_padded=False)
    scheduler = Scheduler(limits)
    scheduler.add(make(ids))
    batches = []
    while batch := scheduler.next_batch(0, 0):
        batches.append(batch)
    kinds = [{tuple(item.token_ids) for item in batch} for batch in batches]
    assert sum(len(batch) for batch in batches) == len(ids)
    assert sum(map(len, kinds)) == len({tuple(item) for item in ids})
    assert all(sum(map(len, kind)) <= budget for kind in kinds)


@pytest.mark.parametrize("lane", Lane)
@pytest.mark.parametrize("is_computing", [False, True])
def test_a_cancelled_twin_takes_nothing_from_the_other(lane: Lane, is_computing: bool) -> None:
    engine = FakeEngine(max_inflight_batches=2, max_inflight_bulk=1)
    engine.hold()
    manager = start(engine)
    others = [add(manager, [[8]], other) for other in Lane]
    engine.wait_submitted(2)
    first, second = (add(manager, [[5, 6]], lane) for _ in range(2))
    if is_computing:
        engine.release_one()
        engine.release_one()
        engine.wait_submitted(3)
    first.future.cancel()
    engine.release()
    np.testing.assert_array_equal(second.future.result(WAIT_SECONDS)[0], fake_vector([5, 6]))
    for job in others:
        job.future.result(WAIT_SECONDS)
    end(manager)
    assert [batch.token_ids.tolist() for batch in engine.batches[2:]] == [[5, 6]]


def test_a_failure_reaches_every_twin() -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine)
    engine.fail_next(ValueError("broken"))
    sequences = make([[5, 6]]) + make([[5, 6]])
    manager.add_bulk(sequences)
    engine.wait_submitted(1)
    engine.release()
    for sequence in sequences:
        error = error_of(sequence.job.future)
        assert isinstance(error, EngineRunError)
        assert "broken" in str(error)
    end(manager)
    assert [batch.num_seqs for batch in engine.batches] == [1]


def test_what_an_engine_can_tell_apart_are_no_twins() -> None:
    (one,) = make([[1, 2]])
    numbers = ("num_prompt_tokens", "num_type0_tokens", "num_attended")
    others = [replace(one), *(replace(one, **{name: 1}) for name in numbers)]
    distinct = Distinct.of([one, *others])
    assert list(distinct.places) == [0, 0, 1, 2, 3]
    assert distinct.sequences[0] is one


def test_twins_of_an_engine_of_tokens_get_rows_of_their_own() -> None:
    ids = [[1, 2], [3], [1, 2], [3], [4, 5, 6]]
    engine = FakeEngine(is_per_token=True)
    manager = start(engine)
    sequences = make(ids, dim=None)
    manager.add_bulk(sequences)
    rows = sequences[0].job.future.result(WAIT_SECONDS)
    for row, item in zip(rows, ids, strict=True):
        expected = [fake_vector(item[: end + 1]) for end in range(len(item))]
        np.testing.assert_array_equal(row, expected)
    rows[0][:] = 0
    assert rows[2].any()
    end(manager)
    assert [batch.num_seqs for batch in engine.batches] == [3]
