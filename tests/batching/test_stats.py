from __future__ import annotations

import pytest

from embedlib.batching.stats import Meter


class Clock:
    """Tells the time a test set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_idle_share_is_the_time_without_a_batch_while_somebody_waits() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 50  # nobody waits
    meter.job_opened()
    clock.now += 1  # idle
    meter.batch_submitted(0.5, is_query=False)
    clock.now += 2
    meter.batch_submitted(0.25, is_query=True)
    clock.now += 1
    meter.batch_over(3.0)
    clock.now += 2  # one is still there
    meter.batch_over(3.0)
    clock.now += 2  # idle again
    meter.job_over()
    clock.now += 50
    stats = meter.read()
    assert stats.engine_idle_share == pytest.approx(3 / 8)
    assert stats.engine_ms == pytest.approx(6000)
    assert stats.queue_ms == pytest.approx(750)
    assert (stats.num_batches, stats.num_query_batches) == (2, 1)


def test_jobs_that_overlap_count_their_time_once() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.job_opened()
    clock.now += 1
    meter.job_opened()
    meter.batch_submitted(0, is_query=False)
    clock.now += 1
    meter.job_over()
    clock.now += 2
    assert meter.read().engine_idle_share == pytest.approx(1 / 4)


def test_padding_share() -> None:
    meter = Meter(Clock())
    assert meter.read().padding_share == 0
    meter.batch_answered(num_texts=2, num_tokens=6, num_computed_tokens=8)
    meter.batch_answered(num_texts=1, num_tokens=3, num_computed_tokens=4)
    stats = meter.read()
    assert stats.padding_share == pytest.approx(1 / 4)
    assert (stats.num_texts, stats.num_tokens) == (3, 9)


def test_what_was_tokenized_and_what_failed() -> None:
    meter = Meter(Clock())
    meter.tokenized(0.5, 2)
    meter.tokenized(0.25, 0)
    meter.batch_failed()
    stats = meter.read()
    assert (stats.tokenize_ms, stats.num_truncated) == (750, 2)
    assert stats.num_failed_batches == 1


def test_a_meter_that_saw_nothing_says_zero() -> None:
    stats = Meter(Clock()).read()
    assert stats.profile == "", "only a session knows it"
    assert {value for name, value in vars(stats).items() if name != "profile"} == {0}
