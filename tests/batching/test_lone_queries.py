from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.tokenizing.tokenizer_thread import Tokenize
from embedlib.batching.usage import Usage
from embedlib.engines.base import Batch, CallerEngine, Lane
from embedlib.errors import ClosedError, EngineOutOfMemoryError, EngineRunError, InputError
from embedlib.models.prompts import Prompt
from embedlib.testing import FakeEngine, byte_tokenizer, fake_vector
from tests.waiting import WAIT_SECONDS, error_of


class CallerFake(FakeEngine):
    """A FakeEngine that computes for callers too, and does what a test wants meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(max_inflight_batches=4)
        self.meanwhile = meanwhile
        self.callers: list[int] = []
        """The threads that computed themselves."""

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        assert not self.is_closed, "a batch came after close"
        self.callers.append(threading.get_ident())
        self.meanwhile()
        return self._compute(batch)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_pipeline(clock: Clock) -> Iterator[Callable[[FakeEngine], Pipeline]]:
    opened: list[Pipeline] = []

    def start(engine: FakeEngine) -> Pipeline:
        opened.append(Pipeline(engine, Meter(clock), max_queued_texts=64))
        return opened[-1]

    yield start
    for pipeline in opened:
        pipeline.close()


def by_bytes() -> Tokenize:
    tokenizer = Tokenizer(
        byte_tokenizer(), 32, on_truncate="ignore", excludes_prompt=False, meter=Meter(Clock())
    )
    return partial(tokenizer, prompt=Prompt())


def ask(pipeline: Pipeline, *texts: str, lane: Lane = Lane.QUERY) -> Job:
    """Feed a job to a pipeline."""
    job = pipeline.open_job(len(texts), lane)
    pipeline.feed(job, list(texts), by_bytes())
    return job


def check(job: Job, *texts: str) -> None:
    expected = [fake_vector(list(text.encode())) for text in texts]
    assert (job.future.result(WAIT_SECONDS) == expected).all()


def test_a_fake_is_what_it_stands_for() -> None:
    assert isinstance(CallerFake(), CallerEngine)
    assert not isinstance(FakeEngine(), CallerEngine)


def test_a_lone_query_is_computed_by_its_caller(
    open_pipeline: Callable[[FakeEngine], Pipeline], clock: Clock
) -> None:
    def work() -> None:
        clock.now += 2.0

    engine = CallerFake(work)
    pipeline = open_pipeline(engine)
    job = ask(pipeline, "abc")
    assert job.is_over
    check(job, "abc")
    assert engine.callers == [threading.get_ident()]
    assert engine.batches == []
    stats = pipeline.stats()
    assert (stats.num_texts, stats.num_tokens, stats.num_query_batches) == (1, 3, 1)
    assert stats.engine_ms == 2000
    assert stats.engine_idle_share == 0


def test_bulk_does_not_hinder_it(open_pipeline: Callable[[FakeEngine], Pipeline]) -> None:
    engine = CallerFake()
    pipeline = open_pipeline(engine)
    engine.hold()
    bulk = ask(pipeline, "first", "second", lane=Lane.BULK)
    engine.wait_submitted(1)
    check(ask(pipeline, "abc"), "abc")
    assert engine.callers == [threading.get_ident()]
    engine.release()
    check(bulk, "first", "second")


def test_several_texts_are_computed_together(
    open_pipeline: Callable[[FakeEngine], Pipeline],
) -> None:
    engine = CallerFake()
    check(ask(open_pipeline(engine), "abc", "d"), "abc", "d")
    assert (engine.callers, len(engine.batches)) == ([], 1)


def test_beside_other_queries_it_goes_to_the_batch_manager(
    open_pipeline: Callable[[FakeEngine], Pipeline],
) -> None:
    engine = CallerFake()
    pipeline = open_pipeline(engine)
    engine.hold()
    first = ask(pipeline, "a", "b")
    second = ask(pipeline, "abc")  # while those wait or compute
    bulk = ask(pipeline, "bulk", lane=Lane.BULK)
    engine.wait_submitted(3)
    third = ask(pipeline, "def")  # while those compute, and the batch manager knows it
    assert [second.is_over, third.is_over] == [False, False]
    engine.release()
    check(first, "a", "b")
    check(second, "abc")
    check(third, "def")
    check(bulk, "bulk")
    assert engine.callers == []


def test_beside_another_caller_it_goes_to_the_batch_manager(
    open_pipeline: Callable[[FakeEngine], Pipeline],
) -> None:
    computes, may_end = threading.Event(), threading.Event()

    def work() -> None:
        computes.set()
        assert may_end.wait(WAIT_SECONDS)

    engine = CallerFake(work)
    pipeline = open_pipeline(engine)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(ask, pipeline, "first")
        assert computes.wait(WAIT_SECONDS)
        check(ask(pipeline, "second"), "second")
        assert len(engine.batches) == 1
        may_end.set()
        check(first.result(WAIT_SECONDS), "first")
    assert len(engine.callers) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("broken"), r"a batch of 1 texts \(3 tokens\) failed: broken"),
        (EngineOutOfMemoryError("3 tokens do not fit"), "^3 tokens do not fit$"),
    ],
)
def test_a_failure_is_told(
    open_pipeline: Callable[[FakeEngine], Pipeline], error: Exception, told: str
) -> None:
    def fail() -> None:
        raise error

    engine = CallerFake(fail)
    pipeline = open_pipeline(engine)
    with pytest.raises(EngineRunError, match=told):
        ask(pipeline, "abc").future.result(0)
    engine.meanwhile = lambda: None
    check(ask(pipeline, "abc"), "abc")
    assert pipeline.stats().num_failed_batches == 1
    assert len(engine.callers) == 2


def test_rows_are_checked(
    open_pipeline: Callable[[FakeEngine], Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CallerFake()
    pipeline = open_pipeline(engine)
    engine.poison(ord("x"))
    with pytest.raises(EngineRunError, match="not finite"):
        ask(pipeline, "xyz").future.result(0)
    monkeypatch.setattr(engine, "compute", lambda _: np.zeros((1, 99), np.float32))
    with pytest.raises(EngineRunError, match=r"returned shape \(1, 99\)"):
        ask(pipeline, "abc").future.result(0)


def test_ctrl_c_reaches_the_caller(
    open_pipeline: Callable[[FakeEngine], Pipeline], clock: Clock
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    engine = CallerFake(interrupt)
    pipeline = open_pipeline(engine)
    with pytest.raises(KeyboardInterrupt):
        ask(pipeline, "abc")
    clock.now += 5.0  # with no job open it counts for nothing
    waits = pipeline.open_job(1, Lane.BULK)
    clock.now += 5.0
    assert pipeline.stats().engine_idle_share == 1  # no batch is in flight any more
    waits.future.cancel()
    engine.meanwhile = lambda: None
    check(ask(pipeline, "abc"), "abc")


def test_closing_waits_for_who_computes(open_pipeline: Callable[[FakeEngine], Pipeline]) -> None:
    computes, is_closed = threading.Event(), threading.Event()

    class Closable(CallerFake):
        def close(self) -> None:
            is_closed.set()

    def work() -> None:
        computes.set()
        assert not is_closed.wait(0.1)

    pipeline = open_pipeline(Closable(work))
    with ThreadPoolExecutor() as pool:
        job = pool.submit(ask, pipeline, "abc")
        assert computes.wait(WAIT_SECONDS)
        pipeline.close()
        check(job.result(WAIT_SECONDS), "abc")
    assert is_closed.is_set()


def test_nothing_is_computed_after_close(open_pipeline: Callable[[FakeEngine], Pipeline]) -> None:
    pipeline = open_pipeline(CallerFake())
    job = pipeline.open_job(1, Lane.QUERY)
    pipeline.close()
    with pytest.raises(ClosedError):
        pipeline.feed(job, ["abc"], by_bytes())


def test_what_a_pool_cannot_feed_fails_the_future(
    open_pipeline: Callable[[FakeEngine], Pipeline],
) -> None:
    engine = CallerFake()
    pipeline = open_pipeline(engine)
    for text, error in (("abc", None), ("", InputError), ("\ud800", InputError)):
        job = pipeline.open_job(1, Lane.QUERY)
        pipeline.feed_or_fail(job, [text], by_bytes())
        assert job.future.done()
        assert isinstance(error_of(job.future), error or type(None)), text
    job = pipeline.open_job(1, Lane.QUERY)
    job.future.cancel()
    pipeline.feed_or_fail(job, ["abc"], by_bytes())
    assert len(engine.callers) == 1


def test_a_signal_may_close_on_the_thread_that_computes(
    open_pipeline: Callable[[FakeEngine], Pipeline],
) -> None:
    engine = CallerFake()
    pipeline = open_pipeline(engine)
    engine.meanwhile = lambda: threading.Thread(target=pipeline.close).start()
    check(ask(pipeline, "abc"), "abc")
    with pytest.raises(ClosedError):
        ask(pipeline, "abc")


def test_usage_of_a_lone_query_and_of_bulk(
    open_pipeline: Callable[[FakeEngine], Pipeline], clock: Clock
) -> None:
    def pass_time() -> None:
        clock.now += 2.0

    class Slow(CallerFake):
        def submit(self, batch: Batch, on_done: Callable[[], None]) -> Any:
            pass_time()
            return super().submit(batch, on_done)

    pipeline = open_pipeline(Slow(pass_time))
    tokenizer = Tokenizer(
        byte_tokenizer(), 4, on_truncate="warn", excludes_prompt=False, meter=Meter(clock)
    )

    def tokenize(job: Job, first_row: int, texts: Sequence[str]) -> list[TokenizedText]:
        sequences = tokenizer(job, first_row, texts, prompt=Prompt(prefix="p"))
        clock.now += 1.0  # between the tokenizer and the queue of the engine
        return sequences

    for lane in Lane:
        job = pipeline.open_job(1, lane)
        pipeline.feed(job, ["abcde"], tokenize)
        job.future.result(WAIT_SECONDS)
        usage = Usage()
        job.add_to(usage)
        assert usage == Usage(
            num_texts=1,
            num_tokens=4,
            truncated=[(0, 6)],
            queue_seconds=1.0,
            compute_seconds=2.0,
            total_seconds=3.0,
        )


def test_usage_counts_the_tokens_of_all_windows(
    open_pipeline: Callable[[FakeEngine], Pipeline], clock: Clock
) -> None:
    tokenizer = Tokenizer(
        byte_tokenizer(), 4, on_truncate="chunk", excludes_prompt=False, meter=Meter(clock)
    )
    pipeline = open_pipeline(FakeEngine())
    job = pipeline.open_job(2, Lane.BULK)
    pipeline.feed(job, ["abcdef", "a"], partial(tokenizer, prompt=Prompt(prefix="p")))
    job.future.result(WAIT_SECONDS)
    usage = Usage()
    job.add_to(usage)
    # Windows of "p" and three bytes each, and "pa".
    assert (usage.num_texts, usage.num_tokens, usage.truncated) == (2, 2 * 4 + 2, [])
