from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedlib.batching.manager import BatchManager, _Cancelled
from embedlib.batching.scheduler import Scheduler
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.twins import Distinct
from embedlib.engines.base import Batch, Lane
from embedlib.errors import (
    ClosedError,
    EngineOutOfMemoryError,
    EngineRunError,
    QueueFullError,
)
from embedlib.testing import FAKE_DIM, FakeEngine, fake_vector
from embedlib.vectors.arrays import Vectors
from tests.ending import end
from tests.waiting import WAIT_SECONDS, error_of

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

BUDGET = 64
"""Tokens of a FakeEngine's batch."""


def start(engine: FakeEngine, max_queued_texts: int = 1000) -> BatchManager:
    return BatchManager(engine, Meter(lambda: 0.0), max_queued_texts=max_queued_texts)


def make(ids: list[list[int]], lane: Lane = Lane.BULK) -> list[TokenizedText]:
    """One job with these sequences."""
    job = Job(len(ids), FAKE_DIM, lane)
    return [TokenizedText(job, row, item) for row, item in enumerate(ids)]


def add(manager: BatchManager, ids: list[list[int]], lane: Lane = Lane.BULK) -> Job:
    sequences = make(ids, lane)
    (manager.add_queries if lane is Lane.QUERY else manager.add_bulk)(sequences)
    return sequences[0].job


def result(job: Job) -> Vectors:
    return job.future.result(WAIT_SECONDS)


def full(token_id: int) -> list[list[int]]:
    """One sequence that fills a batch by itself, the longer (and earlier cut) the lower its id."""
    return [[token_id] * (BUDGET + 20 - token_id)]


def first_ids(engine: FakeEngine) -> list[int]:
    """The first token of every batch that was submitted."""
    return [int(batch.token_ids[0]) for batch in engine.batches]


@settings(deadline=None, max_examples=30)  # a busy machine is no failure
@given(
    jobs=st.lists(
        st.tuples(
            st.sampled_from(Lane),
            st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=80), min_size=1, max_size=9),
        ),
        max_size=8,
    )
)
def test_every_job_gets_its_own_rows(jobs: list[tuple[Lane, list[list[int]]]]) -> None:
    manager = start(FakeEngine())
    waiting = [(ids, add(manager, ids, lane)) for lane, ids in jobs]
    for ids, job in waiting:
        np.testing.assert_array_equal(result(job), [fake_vector(item) for item in ids])
    end(manager)


def test_two_bulk_batches_are_in_flight_and_a_query_still_finds_room() -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine)
    bulk = [add(manager, full(token)) for token in (1, 2, 3, 4)]
    engine.wait_submitted(2)
    query = add(manager, [[9]], Lane.QUERY)
    engine.wait_submitted(3)
    assert first_ids(engine) == [1, 2, 9]
    engine.release_one()
    result(bulk[0])
    engine.wait_submitted(4)
    engine.release()
    for job in (*bulk, query):
        result(job)
    assert first_ids(engine) == [1, 2, 9, 3, 4]
    end(manager)


def test_queries_overtake_bulk_that_waits() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    manager = start(engine)
    jobs = [add(manager, full(token)) for token in (1, 2, 3)]
    engine.wait_submitted(1)
    jobs += [add(manager, full(token), Lane.QUERY) for token in (7, 8)]
    engine.release()
    for job in jobs:
        result(job)
    assert first_ids(engine) == [1, 7, 8, 2, 3]
    assert [batch.lane for batch in engine.batches[1:3]] == [Lane.QUERY] * 2
    end(manager)


def test_few_tokens_of_bulk_are_computed_as_a_query_but_counted_as_bulk() -> None:
    engine, meter = FakeEngine(num_parallel_batches=2), Meter(lambda: 0.0)
    manager = BatchManager(engine, meter, max_queued_texts=1000)
    for num_jobs in (1, 2):
        assert (result(add(manager, [[1, 2]])) == [fake_vector([1, 2])]).all()
        assert [batch.lane for batch in engine.batches] == [Lane.QUERY] * num_jobs
    assert meter.read().num_query_batches == 0
    end(manager)


def test_a_failing_batch_fails_its_own_jobs_only() -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine)
    cause = ValueError("the chip is on fire")
    before = add(manager, full(1))
    engine.wait_submitted(1)
    engine.fail_next(cause)
    sequences = make([[2], [3]]) + make([[4], [5]])
    manager.add_bulk(sequences)
    engine.wait_submitted(2)
    after = add(manager, full(6))
    engine.release()
    assert result(before)[0, 0] == 1
    assert result(after)[0, 0] == 6
    for job in {sequence.job for sequence in sequences}:
        error = error_of(job.future)
        assert isinstance(error, EngineRunError)
        assert str(error) == "a batch of 4 texts (4 tokens) failed: the chip is on fire"
        assert error.__cause__ is cause
        error.__cause__ = None  # as a server does, whose model answers other callers as well
    assert manager._meter.read().num_failed_batches == 1
    end(manager)


def test_out_of_memory_halves_until_it_fits() -> None:
    engine = FakeEngine(memory_tokens=16)
    manager = start(engine)
    ids = [[token] * 8 for token in range(1, 9)]
    job = add(manager, ids)
    np.testing.assert_array_equal(result(job), [fake_vector(item) for item in ids])
    assert [batch.num_seqs for batch in engine.batches] == [8, 4, 4, 2, 2, 2, 2]
    assert manager._meter.read().num_failed_batches == 0
    end(manager)


def test_no_memory_for_what_numpy_lays_out_is_out_of_memory() -> None:
    engine = FakeEngine()
    engine.fail_next(MemoryError(), MemoryError(), ValueError())
    manager = start(engine)
    ids = [[1], [2], [3], [4]]
    job = add(manager, ids)
    assert str(error_of(job.future)) == "a batch of 2 texts (2 tokens) failed: ValueError"
    assert [batch.num_seqs for batch in engine.batches][:3] == [4, 2, 2]
    job = add(manager, ids)
    np.testing.assert_array_equal(result(job), [fake_vector(item) for item in ids])
    end(manager)


def test_no_memory_to_compare_sequences_loses_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real, sizes = Distinct.of, list[int]()

    def compare(sequences: list[TokenizedText]) -> Distinct:
        sizes.append(len(sequences))
        if len(sequences) > 1:
            raise MemoryError
        return real(sequences)

    monkeypatch.setattr(Distinct, "of", compare)
    manager = start(FakeEngine())
    np.testing.assert_array_equal(
        result(add(manager, [[1], [2]])), [fake_vector([1]), fake_vector([2])]
    )
    assert sizes == [2, 1, 1]
    assert manager._meter._num_inflight == 0
    end(manager)


def test_out_of_memory_keeps_the_limits_of_the_engine() -> None:
    engine = FakeEngine(memory_tokens=16)
    engine.hold()
    manager = start(engine)
    jobs = [add(manager, [[token] * 7 + [row] for row in range(8)]) for token in (1, 2, 3)]
    engine.wait_submitted(2)
    engine.release_one()  # comes back in two halves, and one bulk batch is out
    engine.wait_submitted(3)
    query = add(manager, [[9]], Lane.QUERY)
    engine.wait_submitted(4)
    assert first_ids(engine) == [1, 2, 1, 9]
    engine.release()
    for job in (*jobs, query):
        result(job)
    end(manager)


def test_a_text_that_is_too_large_by_itself_fails_its_job_only() -> None:
    engine = FakeEngine(memory_tokens=16)
    manager = start(engine)
    sequences = make([[1] * 17]) + make([[2] * 17, [3]]) + make([[4] * 10])
    manager.add_bulk(sequences)
    jobs = list(dict.fromkeys(sequence.job for sequence in sequences))
    for job in jobs[:2]:
        assert isinstance(error_of(job.future), EngineOutOfMemoryError)
    assert result(jobs[2])[0, 0] == 4
    end(manager)


def test_a_row_that_is_not_a_number_fails_its_job_only_and_is_named() -> None:
    engine = FakeEngine()
    engine.poison(13)
    manager = start(engine)
    sequences = make([[1], [2, 13], [3]]) + make([[4]])
    manager.add_bulk(sequences)
    bad, good = sequences[0].job, sequences[3].job
    assert result(good)[0, 0] == 4
    assert "row 1 (2 tokens) is not finite" in str(error_of(bad.future))
    assert len(engine.batches) == 1
    end(manager)


class OddEngine(FakeEngine):
    """Does something odd with the first batch."""

    def __init__(self, oddity: Callable[[Any, Batch, Callable[[], None]], Any]) -> None:
        super().__init__()
        self.oddity = oddity

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
        if self.batches:
            return super().submit(batch, on_done)
        self.batches.append(batch)
        return self.oddity(super(), batch, on_done)


class Answer:
    """A Pending that returns or raises what it was given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


ODD_ERRORS = [
    RuntimeError(),
    StopIteration("stop"),
    CancelledError(),
    asyncio.CancelledError(),
    KeyboardInterrupt("key"),
    SystemExit("exit"),
    GeneratorExit(),
]


@pytest.mark.parametrize("error", ODD_ERRORS, ids=repr)
@pytest.mark.parametrize("when", ["submit", "result", "submit after on_done"])
def test_whatever_an_engine_raises_reaches_the_job_and_the_thread_lives_on(
    error: BaseException, when: str
) -> None:
    def oddity(_: Any, batch: Batch, on_done: Callable[[], None]) -> Answer:
        if when != "submit":
            on_done()
        if when != "result":
            raise error
        return Answer(error)

    manager = start(OddEngine(oddity))
    told = error_of(add(manager, [[1]]).future)
    assert isinstance(told, EngineRunError)
    assert told.__cause__ is error
    assert result(add(manager, [[2]]))[0, 0] == 2
    assert manager._meter._num_inflight == 0
    end(manager)


@pytest.mark.parametrize(
    "vectors",
    [None, np.zeros((1, FAKE_DIM)), np.zeros((3, FAKE_DIM)), np.zeros((2, FAKE_DIM + 1)), [[1.0]]],
    ids=["nothing", "too few", "too many", "too wide", "no array"],
)
def test_an_answer_of_the_wrong_shape_fails_its_job_and_the_thread_lives_on(vectors: Any) -> None:
    def oddity(_: Any, batch: Batch, on_done: Callable[[], None]) -> Answer:
        on_done()
        return Answer(vectors)

    manager = start(OddEngine(oddity))
    assert isinstance(error_of(add(manager, [[1], [2]]).future), EngineRunError)
    assert result(add(manager, [[2]]))[0, 0] == 2
    end(manager)


def test_an_engine_that_says_done_twice_does_not_mix_up_rows() -> None:
    def oddity(engine: Any, batch: Batch, on_done: Callable[[], None]) -> Answer:
        on_done()
        on_done()
        return Answer(np.full((1, FAKE_DIM), 5, np.float32))

    engine = OddEngine(oddity)
    manager = start(engine)
    # Two batches: counted twice, the first would complete the job.
    job = add(manager, full(1) + full(2))
    assert result(job)[:, 0].tolist() == [5, 2]
    end(manager)


def test_a_full_bulk_queue_blocks_the_producer_until_there_is_room() -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine, max_queued_texts=2)
    jobs = [add(manager, full(token)) for token in (1, 2)]
    engine.wait_submitted(2)
    jobs += [add(manager, full(token)) for token in (3, 4)]
    was_added = threading.Event()

    def produce() -> None:
        jobs.append(add(manager, full(5)))
        was_added.set()

    producer = threading.Thread(target=produce)
    producer.start()
    # A query passes by, so the manager is not stuck.
    query = add(manager, [[9]], Lane.QUERY)
    engine.wait_submitted(3)
    # Two wait and nothing comes back: it cannot get in, however long we look.
    assert not was_added.wait(0.05)
    engine.release_one()
    assert was_added.wait(WAIT_SECONDS)
    producer.join()
    engine.release()
    assert [int(result(job)[0, 0]) for job in (*jobs, query)] == [1, 2, 3, 4, 5, 9]
    end(manager)


def test_a_full_query_queue_is_an_error_at_once() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    manager = start(engine, max_queued_texts=3)
    jobs = [add(manager, full(1), Lane.QUERY)]
    engine.wait_submitted(1)
    # Answered by now or not, what is submitted does not count as waiting; that the manager has said
    # so is seen when the next three get in.
    jobs += [add(manager, [[2], [3]], Lane.QUERY)]
    with pytest.raises(QueueFullError, match=r"queries wait already and max_queued_texts is 3"):
        add(manager, [[4], [5]], Lane.QUERY)
    bulk = add(manager, [[6]])  # another lane has its own room
    engine.release()
    for job in (*jobs, bulk):
        result(job)
    assert result(add(manager, [[7]], Lane.QUERY))[0, 0] == 7
    end(manager)


def wait_queued(manager: BatchManager, num_queries: int) -> None:
    with manager._changed:
        assert manager._changed.wait_for(
            lambda: manager._num_queued(Lane.QUERY) == num_queries, WAIT_SECONDS
        )


def test_a_query_that_was_cancelled_holds_no_place() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    manager = start(engine, max_queued_texts=3)
    first = add(manager, [[1]], Lane.QUERY)
    wait_queued(manager, 0)
    kept = add(manager, [[2]], Lane.QUERY)
    gone = [add(manager, [[3]], Lane.QUERY) for _ in range(2)]
    with pytest.raises(QueueFullError):
        add(manager, [[4]], Lane.QUERY)
    for job in gone:
        job.future.cancel()
    wait_queued(manager, 1)  # although no batch is over
    more = [add(manager, [[token]], Lane.QUERY) for token in (4, 5)]
    engine.release()
    assert [int(result(job)[0, 0]) for job in (first, kept, *more)] == [1, 2, 4, 5]
    end(manager)


def test_any_number_of_cancelled_queries_is_one_message() -> None:
    """The manager looks at all queries that wait for each."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    cancelled = _Cancelled()
    cancelled.notify(inbox)
    cancelled.notify(inbox)
    assert inbox.get() is cancelled
    assert inbox.empty()


def test_queries_of_several_jobs_queued_at_once_are_cancelled_one_by_one() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    manager = start(engine)
    first = add(manager, [[1]], Lane.QUERY)
    wait_queued(manager, 0)
    together = [*make([[2]], Lane.QUERY), *make([[3]], Lane.QUERY), *make([[4]], Lane.QUERY)]
    manager.add_queries(together)
    wait_queued(manager, 3)
    together[1].job.future.cancel()
    wait_queued(manager, 2)
    engine.release()
    jobs = (first, together[0].job, together[2].job)
    assert [int(result(job)[0, 0]) for job in jobs] == [1, 2, 4]
    end(manager)


def test_a_job_cancelled_before_compute_is_never_submitted() -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine)
    jobs = [add(manager, full(token)) for token in (1, 2, 3, 4, 5)]
    engine.wait_submitted(2)
    jobs[2].future.cancel()
    jobs[4].future.cancel()
    jobs[1].future.cancel()  # being computed: nobody looks at the rows any more
    engine.release()
    assert result(jobs[0])[0, 0] == 1
    assert result(jobs[3])[0, 0] == 4
    assert first_ids(engine) == [1, 2, 4]
    end(manager)


def test_closing_fails_what_waits_and_finishes_what_is_in_flight() -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine, max_queued_texts=2)
    jobs = [add(manager, full(token)) for token in (1, 2)]
    engine.wait_submitted(2)
    jobs += [add(manager, full(token)) for token in (3, 4)]
    errors: list[Exception] = []

    def produce() -> None:
        try:
            add(manager, full(5))
        except ClosedError as error:
            errors.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    closer = threading.Thread(target=end, args=[manager])
    closer.start()
    producer.join(WAIT_SECONDS)  # let go although nothing has come back
    assert len(errors) == 1
    engine.release()
    closer.join(WAIT_SECONDS)
    assert not closer.is_alive()
    assert [int(result(job)[0, 0]) for job in jobs[:2]] == [1, 2]
    for job in jobs[2:]:
        assert isinstance(error_of(job.future), ClosedError)
    assert len(engine.batches) == 2


def test_closing_cancels_what_is_computed_for_nobody() -> None:
    class CancellingEngine(FakeEngine):
        """Its batches can be cancelled, and then end with an error."""

        def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
            pending = super().submit(batch, on_done)
            number = len(self.batches)

            def cancel() -> None:
                cancelled.append(number)
                on_done()

            pending.cancel = cancel
            return pending

    cancelled: list[int] = []
    engine = CancellingEngine()
    engine.hold()
    manager = start(engine)
    unwanted, wanted = add(manager, full(1)), add(manager, full(2))
    engine.wait_submitted(2)
    unwanted.future.cancel()
    closer = threading.Thread(target=end, args=[manager])
    closer.start()
    engine.wait_submitted(2)
    while not cancelled:
        closer.join(0.001)
    assert closer.is_alive()
    engine.release()
    closer.join(WAIT_SECONDS)
    assert not closer.is_alive()
    assert cancelled == [1]
    assert int(result(wanted)[0, 0]) == 2


@pytest.mark.parametrize("lane", Lane)
def test_closed_twice_and_used_after(lane: Lane) -> None:
    manager = start(FakeEngine())
    end(manager)
    end(manager)
    with pytest.raises(ClosedError, match="closed"):
        add(manager, [[1]], lane)


def test_out_of_memory_while_closing_fails_the_job() -> None:
    engine = FakeEngine(memory_tokens=2)
    engine.hold()
    manager = start(engine)
    job = add(manager, [[1, 1], [2, 2]])
    engine.wait_submitted(1)
    manager.stop()
    closer = threading.Thread(target=end, args=[manager])
    closer.start()
    engine.release()
    closer.join(WAIT_SECONDS)
    # It was tried again before the close was seen, or given up after.
    error = error_of(job.future)
    assert error is None or isinstance(error, ClosedError)


@pytest.mark.parametrize("step", ["add", "next_batch"])
def test_a_bug_in_the_manager_reaches_everybody_who_waits(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    engine = FakeEngine()
    engine.hold()
    manager = start(engine)
    jobs = [add(manager, full(token)) for token in (1, 2, 3)]
    engine.wait_submitted(2)

    def broken(*_: object) -> list[TokenizedText]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Scheduler, step, broken)
    refusals: list[str | None] = []
    sequences = make(full(4))
    jobs.append(sequences[0].job)
    jobs[-1].future.add_done_callback(lambda _: refusals.append(manager.failure))
    manager.add_bulk(sequences)
    for job in jobs:
        assert isinstance(error_of(job.future), ZeroDivisionError)
    assert refusals == ["this model has stopped: a bug"], "who asks again is refused already"
    errors: list[BaseException] = []
    for _ in range(2):
        with pytest.raises(ClosedError, match="has stopped: a bug") as caught:
            add(manager, full(5))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        errors.append(caught.value)
    assert errors[0] is not errors[1], "each raise would add to its traceback, for ever"
    assert manager.thread.is_alive(), "who closes the model frees the engine"
    engine.release()
    end(manager)


def test_a_queue_that_a_bug_has_left_full_is_not_said_to_get_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    manager = start(engine, max_queued_texts=1)
    add(manager, [[1]], Lane.QUERY)
    wait_queued(manager, 0)
    add(manager, [[2]], Lane.QUERY)
    monkeypatch.setattr(Scheduler, "add", Mock(side_effect=ZeroDivisionError))
    error_of(add(manager, [[3]]).future)
    with pytest.raises(ClosedError, match="has stopped"):
        add(manager, [[4]], Lane.QUERY)
    engine.release()
    end(manager)


def test_an_engine_of_tokens_gives_a_row_for_each() -> None:
    engine = FakeEngine(is_per_token=True)
    manager = start(engine)
    job = Job(2, None, Lane.BULK)
    manager.add_bulk([TokenizedText(job, 0, [5, 6]), TokenizedText(job, 1, [7])])
    assert [rows.tolist() for rows in result(job)] == [
        [fake_vector([5]).tolist(), fake_vector([5, 6]).tolist()],
        [fake_vector([7]).tolist()],
    ]
    end(manager)


@pytest.mark.parametrize("step", ["stats.Meter.batch_submitted", "manager.resolve"])
def test_a_bug_while_a_batch_is_started_or_delivered_reaches_its_jobs(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(f"embedlib.batching.{step}", Mock(side_effect=ZeroDivisionError))
    manager = start(FakeEngine())
    assert isinstance(error_of(add(manager, [[1]]).future), ZeroDivisionError)
    end(manager)


def test_closing_from_the_callback_of_a_future() -> None:
    manager = start(FakeEngine())
    closed = threading.Event()
    sequences = make([[1]])

    def close(_: object) -> None:
        end(manager)
        closed.set()

    sequences[0].job.future.add_done_callback(close)
    manager.add_bulk(sequences)
    assert closed.wait(WAIT_SECONDS)
    manager.thread.join(WAIT_SECONDS)
    assert not manager.thread.is_alive()


def test_padding_is_counted_where_the_engine_pads() -> None:
    for is_padded, last, share in (
        (True, [3], 1 - 9 / 15),
        (True, [3] * 3, 1 - 11 / 15),
        (True, [2] * 3, 1 - 11 / 13),  # a twin
        (False, [3], 0.0),
    ):
        manager = start(FakeEngine(is_padded=is_padded))
        result(add(manager, [[1] * 5, [2] * 3, last]))
        stats = manager._meter.read()
        assert stats.padding_share == pytest.approx(share)
        assert (stats.num_texts, stats.num_tokens, stats.num_batches) == (3, 8 + len(last), 1)
        end(manager)
