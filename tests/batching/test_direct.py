"""Bulk of an engine that computes at once: on the tokenizer thread, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.batching.direct import InstantTexts, compute_here, compute_packed
from embedlib.batching.packed import PackedTexts
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job, TokenizedText
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.batching.usage import Usage
from embedlib.engines.base import Batch, EngineLimits, Lane, Pending
from embedlib.errors import EngineRunError
from embedlib.models.prompts import Prompt
from embedlib.testing import byte_tokenizer
from tests.waiting import WAIT_SECONDS

BUDGET = 100


class InstantEngine:
    """Its rows are the first bytes of texts; notes which thread computed how many tokens."""

    limits = EngineLimits(
        embedding_dim=1,
        is_padded=False,
        max_batch_tokens=BUDGET,
        num_parallel_batches=1,
        max_inflight_batches=2,
        max_inflight_bulk=1,
        is_instant=True,
    )

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.before: Callable[[], None] = lambda: None

    def submit(self, batch: Batch, on_done: Callable[[], None]) -> Pending:
        raise AssertionError("the batch manager has nothing to do")

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        self.before()
        self.batches.append((threading.current_thread().name, batch.seq_lens.tolist()))
        return batch.token_ids[batch.cu_seqlens[:-1]].astype(np.float32)[:, None]

    def close(self) -> None:
        pass


def run(engine: InstantEngine, texts: list[str], on_open: Callable[[Job], None]) -> Any:
    meter = Meter(lambda: 0.0)
    pipeline = Pipeline(engine, meter, max_queued_texts=8192)
    tokenizer = Tokenizer(
        byte_tokenizer(), 500, on_truncate="ignore", excludes_prompt=False, meter=meter
    )
    try:
        job = pipeline.open_job(len(texts), Lane.BULK)
        on_open(job)
        pipeline.feed(job, texts, partial(tokenizer, prompt=Prompt()))
        return job.future.result(WAIT_SECONDS)
    finally:
        pipeline.close()
        stats = pipeline.stats()
        assert stats.num_batches == len(engine.batches) + stats.num_failed_batches


def test_rows_in_the_order_of_the_texts_within_the_budget() -> None:
    engine = InstantEngine()
    texts = [chr(97 + row % 26) * (1 + row * 7 % 60) for row in range(300)]
    texts = ["y" * 300, *texts, "z" * 300]
    rows = run(engine, texts, lambda job: None)
    assert rows[:, 0].tolist() == [float(text.encode()[0]) for text in texts]
    assert {name for name, _ in engine.batches} == {"embedlib-tokenizer"}
    assert [n for _, lens in engine.batches for n in lens] == [len(text) for text in texts]
    assert all(sum(lens) <= BUDGET or len(lens) == 1 for _, lens in engine.batches)


def test_rows_of_tokens_and_sparse_rows_are_given_one_by_one() -> None:
    class TokenEngine(InstantEngine):
        def compute(self, batch: Batch) -> NDArray[np.float32]:
            return batch.token_ids.astype(np.float32)[:, None]

    for engine, kind, rows in (
        (TokenEngine(), "is_per_token", [[[97.0], [98.0]], [[99.0]]]),
        (InstantEngine(), "is_sparse", [{0: 97.0}, {0: 99.0}]),
    ):
        engine.limits = replace(InstantEngine.limits, **{kind: True})
        job = Job(2, None, Lane.BULK)
        ids = np.array([97, 98, 99], np.int32)
        InstantTexts(engine, Meter(lambda: 0.0))(PackedTexts(job, 0, ids, [2, 1], 0.0))
        found = job.future.result(WAIT_SECONDS)
        assert [row if kind == "is_sparse" else row.tolist() for row in found] == rows


def test_what_the_engine_raises_reaches_the_caller() -> None:
    engine = InstantEngine()

    def fail() -> None:
        raise ValueError("no table")

    engine.before = fail
    with pytest.raises(EngineRunError, match=r"a batch of \d+ texts .* failed: no table"):
        run(engine, ["a" * 20] * 300, lambda job: None)


def test_a_job_that_is_over_is_not_computed_further() -> None:
    engine = InstantEngine()

    def cancel_in_the_second_batch(job: Job) -> None:
        def before() -> None:
            if len(engine.batches) == 1:
                job.future.cancel()

        engine.before = before

    with pytest.raises(CancelledError):
        run(engine, ["a" * 20] * 300, cancel_in_the_second_batch)
    assert len(engine.batches) == 2


def test_packed_texts_of_a_job_that_is_over_are_not_computed_further() -> None:
    engine = InstantEngine()
    job = Job(3, 1, Lane.BULK)
    engine.before = job.future.cancel
    ids = np.zeros(3 * BUDGET, np.int32)
    InstantTexts(engine, Meter(lambda: 0.0))(PackedTexts(job, 0, ids, [BUDGET] * 3, 0.0))
    assert len(engine.batches) == 1


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_times_of_a_batch_are_those_of_the_clock(is_packed: bool) -> None:
    now = 10.0

    def compute() -> None:
        nonlocal now
        now = 14.0

    engine, meter = InstantEngine(), Meter(lambda: now)
    engine.before = compute
    job = Job(2, 1, Lane.BULK)
    job.add_tokenized(4, [], 0.5, 7.0)
    if is_packed:
        ids = np.array([1, 2, 3, 4], np.int32)
        compute_packed(engine, PackedTexts(job, 0, ids, [2, 2], 7.0), Lane.BULK, meter)
    else:
        texts = [TokenizedText(job, row, [1, 2], queued_at=7.0) for row in range(2)]
        compute_here(engine, texts, Lane.BULK, meter)
    stats, usage = meter.read(), Usage()
    job.add_to(usage)
    assert (stats.queue_ms, stats.engine_ms) == (6000.0, 4000.0)
    assert (usage.queue_seconds, usage.compute_seconds) == (3.0, 4.0)
