from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.policy import DEFAULT_POLICY
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.tokenizing.tokenizer_thread import Tokenize, TokenizerThread
from embedlib.engines.base import Lane
from embedlib.errors import ClosedError, EngineBuildError, InputError, QueueFullError
from embedlib.models.prompts import Prompt
from embedlib.testing import FakeEngine, byte_tokenizer, fake_vector
from tests.waiting import WAIT_SECONDS, error_of

pytestmark = pytest.mark.usefixtures("no_thread_is_left")

MICRO_BATCH_TEXTS = DEFAULT_POLICY.micro_batch_texts


@pytest.mark.parametrize(
    ("budget", "is_instant", "num_texts"),
    [(512, False, 64), (4096, True, 256), (16_384, False, 256), (65_536, False, 512)],
)
def test_a_micro_batch_grows_with_the_engines_batches(
    budget: int, is_instant: bool, num_texts: int
) -> None:
    limits = FakeEngine(max_batch_tokens=budget).limits
    found = DEFAULT_POLICY.micro_batch(replace(limits, is_instant=is_instant))
    assert found == num_texts


def test_an_engine_of_large_batches_gets_large_micro_batches() -> None:
    sizes: list[int] = []
    tokenize = by_bytes()

    def watch(job: Job, first_row: int, texts: Sequence[Any]) -> Sequence[TokenizedText]:
        sizes.append(len(texts))
        return tokenize(job, first_row, texts)

    pipeline = start(FakeEngine(max_batch_tokens=65_536))
    job = pipeline.open_job(1100, Lane.BULK)
    pipeline.feed(job, ["a"] * 1100, watch)
    job.future.result(WAIT_SECONDS)
    pipeline.close()
    assert sizes == [512, 512, 76]


class Clock:
    """Tells the time a test set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def start(engine: FakeEngine, clock: Clock | None = None, **options: Any) -> Pipeline:
    given = {"max_queued_texts": 8192, **options}
    return Pipeline(engine, Meter(clock or Clock()), **given)


def by_bytes(
    prompt: str = "",
    *,
    excludes_prompt: bool = False,
    max_seq_tokens: int = 32,
    meter: Meter | None = None,
) -> Tokenize:
    """A Tokenizer with this prompt in front of every text."""
    tokenizer = Tokenizer(
        byte_tokenizer(),
        max_seq_tokens,
        on_truncate="ignore",
        excludes_prompt=excludes_prompt,
        meter=meter or Meter(Clock()),
    )
    return partial(tokenizer, prompt=Prompt(prefix=prompt))


@pytest.mark.parametrize("lane", Lane)
def test_texts_become_rows_in_their_order(lane: Lane) -> None:
    pipeline = start(FakeEngine())
    texts = [f"text {'x' * (row % 20)}{row}" for row in range(200)]
    job = pipeline.open_job(len(texts), lane)
    pipeline.feed(job, texts, by_bytes("p: "))
    expected = [fake_vector(("p: " + text).encode()) for text in texts]
    np.testing.assert_array_equal(job.future.result(WAIT_SECONDS), expected)
    pipeline.close()


def test_the_prompt_is_counted_where_pooling_leaves_it_out() -> None:
    pipeline = start(FakeEngine())
    job = pipeline.open_job(1, Lane.QUERY)
    pipeline.feed(job, ["x"], by_bytes("abc", excludes_prompt=True))
    assert job.future.result(WAIT_SECONDS)[0].tolist() == fake_vector(b"abcx", 3).tolist()
    pipeline.close()


def test_a_query_is_tokenized_by_its_caller_and_bulk_by_the_thread() -> None:
    pipeline = start(FakeEngine())
    threads: list[str] = []

    def spy(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return by_bytes()(*args)

    for lane in (Lane.QUERY, Lane.BULK):
        job = pipeline.open_job(1, lane)
        pipeline.feed(job, ["a"], spy)
        job.future.result(WAIT_SECONDS)
    assert threads == [threading.current_thread().name, "embedlib-tokenizer"]
    pipeline.close()


class Watched(list[str]):
    """Texts that call a function whenever some of them are taken."""

    def __init__(self, num_texts: int, on_take: Callable[[], object]) -> None:
        super().__init__(["a"] * num_texts)
        self.on_take = on_take

    def __getitem__(self, place: Any) -> Any:
        self.on_take()
        return super().__getitem__(place)


def test_a_job_that_is_over_is_not_fed_further() -> None:
    pipeline = start(FakeEngine())
    job = pipeline.open_job(3 * MICRO_BATCH_TEXTS, Lane.BULK)
    on_take = Mock(side_effect=job.future.cancel)
    pipeline.feed(job, Watched(job.num_texts, on_take), by_bytes())
    assert on_take.call_count == 1
    pipeline.close()


def test_an_error_while_feeding_cancels_what_was_fed() -> None:
    engine = FakeEngine()
    engine.hold()
    pipeline = start(engine)
    job = pipeline.open_job(500, Lane.BULK)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.feed(job, Watched(500, interrupt), by_bytes())
    assert job.future.cancelled()
    engine.release()
    pipeline.close()
    assert pipeline._meter._num_jobs == 0


def test_a_bad_query_is_told_at_once_and_a_bad_bulk_text_through_the_job() -> None:
    pipeline = start(FakeEngine())
    query, bulk = pipeline.open_job(2, Lane.QUERY), pipeline.open_job(2, Lane.BULK, first_row=40)
    with pytest.raises(InputError, match="text 1 is None"):
        pipeline.feed(query, ["a", None], by_bytes())
    pipeline.feed(bulk, ["a", None], by_bytes())
    with pytest.raises(InputError, match="text 41 is None"):
        bulk.future.result(WAIT_SECONDS)
    pipeline.close()


def test_whatever_tokenizing_raises_the_thread_goes_on() -> None:
    pipeline = start(FakeEngine())

    def panic(job: Job, first_row: int, texts: Sequence[Any]) -> Sequence[TokenizedText]:
        raise SystemExit("no exception of Python's own")

    bad, good = pipeline.open_job(1, Lane.BULK), pipeline.open_job(1, Lane.BULK)
    pipeline.feed(bad, ["x"], panic)
    pipeline.feed(good, ["x"], by_bytes())
    with pytest.raises(SystemExit, match="no exception"):
        bad.future.result(WAIT_SECONDS)
    assert good.future.result(WAIT_SECONDS).tolist() == [fake_vector(b"x").tolist()]
    query = pipeline.open_job(1, Lane.QUERY)
    pipeline.feed_or_fail(query, ["x"], panic)  # on a thread of a pool, to which nobody listens
    with pytest.raises(SystemExit, match="no exception"):
        query.future.result(WAIT_SECONDS)
    pipeline.close()


def test_too_many_queries_are_an_error_and_leave_nothing_behind() -> None:
    engine = FakeEngine(max_inflight_batches=1, max_inflight_bulk=1)
    engine.hold()
    pipeline = start(engine, max_queued_texts=2)
    # Nothing waits, so that no later try could go better: more than the bound are taken.
    jobs = [pipeline.open_job(3, Lane.QUERY) for _ in range(2)]
    pipeline.feed(jobs[0], ["a"] * 3, by_bytes())
    engine.wait_submitted(1)
    pipeline.feed(jobs[1], ["a"], by_bytes())
    job = pipeline.open_job(2, Lane.QUERY)
    with pytest.raises(QueueFullError, match="max_queued_texts is 2"):
        pipeline.feed(job, ["a"] * 2, by_bytes())
    assert job.future.cancelled()
    jobs[1].future.cancel()
    engine.release()
    jobs[0].future.result(WAIT_SECONDS)
    assert pipeline._meter._num_jobs == 0
    pipeline.close()


def test_a_producer_cannot_outrun_the_engine() -> None:
    engine = FakeEngine(max_batch_tokens=MICRO_BATCH_TEXTS)
    engine.hold()
    pipeline = start(engine, max_queued_texts=MICRO_BATCH_TEXTS)
    job = pipeline.open_job(100 * MICRO_BATCH_TEXTS, Lane.BULK)
    fed: list[int] = []
    producer = threading.Thread(
        target=pipeline.feed,
        args=(job, Watched(job.num_texts, lambda: fed.append(1)), by_bytes()),
    )
    producer.start()
    engine.wait_submitted(2)
    # Two on the engine, one waiting there, one in the tokenizer's hands, one in its queue, and one
    # in the caller's hands.
    assert len(fed) <= 6
    engine.release()
    np.testing.assert_array_equal(
        job.future.result(WAIT_SECONDS), np.tile(fake_vector(b"a"), (job.num_texts, 1))
    )
    producer.join(WAIT_SECONDS)
    assert len(fed) == 100
    pipeline.close()


def test_a_cancelled_job_releases_its_blocked_producer() -> None:
    # An engine that hangs makes no room in the queue, and the program may be about to end.
    pipeline = start(FakeEngine(), max_queued_texts=MICRO_BATCH_TEXTS)
    begun, may_tokenize = threading.Event(), threading.Event()

    def tokenize(job: Job, first_row: int, texts: Sequence[str]) -> list[TokenizedText]:
        begun.set()
        assert may_tokenize.wait(WAIT_SECONDS)
        return by_bytes()(job, first_row, texts)

    job = pipeline.open_job(100 * MICRO_BATCH_TEXTS, Lane.BULK)
    producer = threading.Thread(target=pipeline.feed, args=(job, ["a"] * job.num_texts, tokenize))
    producer.start()
    assert begun.wait(WAIT_SECONDS)
    while not pipeline._tokenizer_thread._changed._waiters:  # type: ignore[attr-defined]
        producer.join(0.001)
    job.future.cancel()
    producer.join(WAIT_SECONDS)
    assert not producer.is_alive()
    may_tokenize.set()
    pipeline.close()


def test_closing_while_the_producer_is_blocked() -> None:
    engine = FakeEngine(max_batch_tokens=1)
    engine.hold()
    pipeline = start(engine, max_queued_texts=1)
    job = pipeline.open_job(10 * MICRO_BATCH_TEXTS, Lane.BULK)
    errors: list[BaseException] = []

    def produce() -> None:
        try:
            pipeline.feed(job, ["a"] * job.num_texts, by_bytes())
        except ClosedError as error:
            errors.append(error)

    producer = threading.Thread(target=produce)
    producer.start()
    engine.wait_submitted(2)
    closer = threading.Thread(target=pipeline.close)
    closer.start()
    producer.join(WAIT_SECONDS)
    assert not producer.is_alive()
    engine.release()
    closer.join(WAIT_SECONDS)
    assert not closer.is_alive()
    # Blocked in the queue it hears of it there; between two micro-batches, through its job.
    assert errors or isinstance(error_of(job.future), ClosedError)
    assert job.is_over
    assert engine.is_closed
    assert len(engine.batches) == 2


def test_closed_twice_and_used_after() -> None:
    engine = FakeEngine()
    pipeline = start(engine)
    pipeline.close()
    pipeline.close()
    assert engine.is_closed
    for num_texts in (0, 1):
        with pytest.raises(ClosedError, match="closed; load it again"):
            pipeline.open_job(num_texts, Lane.QUERY)


@pytest.mark.parametrize("num_threads", [0, 1])
def test_a_thread_that_cannot_be_started_leaves_none(
    num_threads: int, limit_threads: Callable[[int], list[str]]
) -> None:
    started = limit_threads(num_threads)
    engine = FakeEngine()
    with pytest.raises(EngineBuildError, match=r"^no more threads can be started .*ulimit -u"):
        start(engine)
    assert len(started) == num_threads  # and `no_thread_is_left`


def test_a_forked_child_is_refused_and_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    pipeline = start(engine)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ClosedError, match="forked child -1"):
            pipeline.open_job(1, Lane.QUERY)
        pipeline.close()
    assert not engine.is_closed
    pipeline.close()


def test_times_and_shares() -> None:
    clock = Clock()
    engine = FakeEngine(is_padded=True)
    engine.hold()
    pipeline = start(engine, clock)
    job = pipeline.open_job(3, Lane.QUERY)
    clock.now += 1  # waiting, and nothing on the engine
    pipeline.feed(job, ["abcdefgh", "abc", "a"], by_bytes(max_seq_tokens=5, meter=pipeline._meter))
    engine.wait_submitted(1)
    clock.now += 3
    engine.release()
    job.future.result(WAIT_SECONDS)
    clock.now += 100
    pipeline.close()
    stats = pipeline.stats()
    assert (stats.num_texts, stats.num_tokens, stats.num_truncated) == (3, 9, 1)
    assert (stats.num_batches, stats.num_query_batches, stats.num_failed_batches) == (1, 1, 0)
    assert stats.engine_ms == pytest.approx(3000)
    assert stats.engine_idle_share == pytest.approx(1 / 4)
    assert stats.padding_share == pytest.approx(1 - 9 / 15)
    assert stats.queue_ms == 0


def test_every_job_is_counted_as_over_however_it_ends() -> None:
    engine = FakeEngine()
    pipeline = start(engine)
    jobs = [pipeline.open_job(1, Lane.QUERY) for _ in range(3)]
    pipeline.feed(jobs[0], ["a"], by_bytes())
    engine.fail_next(ValueError())
    error_of(jobs[0].future)
    pipeline.feed(jobs[1], ["a"], by_bytes())
    error_of(jobs[1].future)
    jobs[2].future.cancel()
    pipeline.open_job(0, Lane.BULK)
    pipeline.close()
    assert pipeline._meter._num_jobs == 0
    assert pipeline._meter._num_inflight == 0


@pytest.mark.parametrize("ending", ["released", "cancelled", "closed"])
def test_coroutines_that_wait_for_room_hold_no_thread(ending: str) -> None:
    engine = FakeEngine()
    engine.hold()
    pipeline = start(engine, max_queued_texts=4)
    texts = [f"text {row}" for row in range(4 * MICRO_BATCH_TEXTS)]
    before = threading.active_count()

    async def call(job: Job) -> list[list[float]]:
        await pipeline.afeed_bulk(job, texts, by_bytes())
        return (await job.future.in_loop()).tolist()  # type: ignore[no-any-return]

    async def work() -> list[Any]:
        jobs = [pipeline.open_job(len(texts), Lane.BULK) for _ in range(3)]
        calls = [asyncio.create_task(call(job)) for job in jobs]
        while not engine.batches or pipeline._tokenizer_thread._num_queued < 4:
            await asyncio.sleep(0)
        assert threading.active_count() == before
        if ending == "cancelled":
            jobs[1].future.cancel()  # woken where it waits for room
        elif ending == "closed":
            pipeline._tokenizer_thread.stop()
        engine.release()
        return await asyncio.wait_for(
            asyncio.gather(*calls, return_exceptions=True), timeout=WAIT_SECONDS
        )

    found = asyncio.run(work())
    expected = [fake_vector(text.encode()).tolist() for text in texts]
    if ending == "released":
        assert found == [expected] * 3
    elif ending == "cancelled":
        assert found[::2] == [expected] * 2
        assert isinstance(found[1], CancelledError)
    else:
        assert [type(each) for each in found] == [ClosedError] * 3
    pipeline.close()


def test_a_cancelled_call_keeps_no_room_from_those_behind_it() -> None:
    has_begun, may_go, told = threading.Event(), threading.Event(), threading.Event()

    def send(_: Sequence[TokenizedText]) -> None:
        has_begun.set()
        may_go.wait(WAIT_SECONDS)

    thread = TokenizerThread(send, max_queued_texts=1)
    jobs = [Job(1, 1, Lane.BULK) for _ in range(4)]

    def offer(job: Job) -> bool:
        return thread.offer(job, 0, ["x"], lambda *_: (), told.set if job is jobs[3] else print)

    assert offer(jobs[0])
    assert has_begun.wait(WAIT_SECONDS)
    assert [offer(job) for job in jobs[1:]] == [True, False, False]
    jobs[2].future.cancel()
    may_go.set()
    assert told.wait(WAIT_SECONDS)
    thread.stop()
    thread.thread.join(WAIT_SECONDS)


def test_a_short_call_is_not_kept_out_by_a_long_one_that_came_before() -> None:
    engine = FakeEngine()
    engine.hold()
    pipeline = start(engine, max_queued_texts=MICRO_BATCH_TEXTS)
    ended: list[str] = []

    async def call(name: str, num_texts: int) -> None:
        texts = [f"{name} {row}" for row in range(num_texts)]
        job = pipeline.open_job(num_texts, Lane.BULK)
        await pipeline.afeed_bulk(job, texts, by_bytes())
        await job.future.in_loop()
        ended.append(name)

    async def work() -> None:
        long = asyncio.create_task(call("long", 60 * MICRO_BATCH_TEXTS))
        while not engine.batches:
            await asyncio.sleep(0)
        short = asyncio.create_task(call("short", 2 * MICRO_BATCH_TEXTS))
        await asyncio.sleep(0)
        engine.release()
        await asyncio.wait_for(asyncio.gather(long, short), timeout=WAIT_SECONDS)

    asyncio.run(work())
    assert ended == ["short", "long"]
    pipeline.close()


def test_a_job_that_waited_for_room_does_not_outlive_its_call() -> None:
    pipeline = start(FakeEngine(), max_queued_texts=1)
    job = pipeline.open_job(8 * MICRO_BATCH_TEXTS, Lane.BULK)
    pipeline.feed(job, ["a"] * job.num_texts, by_bytes())
    job.future.result(WAIT_SECONDS)
    left = weakref.ref(job)
    del job
    pause = threading.Event()
    for _ in range(1000):  # the threads let go once they are back where they wait for more
        if left() is None:
            break
        pause.wait(0.01)
    assert left() is None
    pipeline.close()
