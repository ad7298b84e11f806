"""Texts as packed ids: the vectors, counts and errors of texts with an object each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from embedlib.batching import direct
from embedlib.batching.packed import PackedTexts, join
from embedlib.batching.pipeline import Pipeline
from embedlib.batching.sequence import Job, pack
from embedlib.batching.stats import Meter
from embedlib.batching.tokenizing.tokenizer import Tokenizer
from embedlib.engines.base import Lane
from embedlib.errors import EngineRunError, InputError, SequenceTooLongError
from embedlib.models.prompts import Prompt
from embedlib.testing.models.tokenizers import build_tokenizer
from tests.batching.test_direct import BUDGET, WAIT_SECONDS, InstantEngine

WORDS = ("the", "city", "runs", "fox,", "x-ray", "\u2603")


def texts_of(count: int) -> list[str]:
    """Return texts of 1 to 12 words."""
    return [
        " ".join(WORDS[(row * 5 + place) % len(WORDS)] for place in range(1 + row * 7 % 12))
        for row in range(count)
    ]


class Setup:
    """A pipeline, and a tokenizer that keeps parts or not."""

    def __init__(self, dropped: bool = False, max_seq_tokens: int = 60) -> None:
        rust, _ = build_tokenizer("bert")
        rust.post_processor = None
        rust.no_truncation()
        rust.no_padding()
        self.engine = InstantEngine()
        self.meter = Meter(lambda: 0.0)
        self.pipeline = Pipeline(self.engine, self.meter, max_queued_texts=8192)
        options: dict[str, Any] = {"on_truncate": "ignore", "excludes_prompt": False}
        if dropped:
            options["dropped_token_id"] = rust.token_to_id("[UNK]")
        make = partial(Tokenizer, rust, max_seq_tokens, meter=self.meter, **options)
        self.keeping, self.plain = make(keeps_parts=True), make()

    def run(self, texts: list[str], tokenizer: Tokenizer, lane: Lane = Lane.BULK) -> Any:
        job = self.pipeline.open_job(len(texts), lane)
        self.pipeline.feed(job, texts, partial(tokenizer, prompt=Prompt(prefix="the ")))
        return job.future.result(WAIT_SECONDS)


@pytest.fixture(params=[False, True], ids=["all tokens", "dropped"])
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    made = Setup(dropped=request.param)
    yield made
    made.pipeline.close()


def test_packed_texts_are_the_sequences_of_texts(setup: Setup) -> None:
    texts = texts_of(300)
    job = Job(len(texts), 1, Lane.BULK)
    packed = setup.keeping(job, 5, texts, Prompt(prefix="the "))
    assert isinstance(packed, PackedTexts)
    plain = setup.plain(job, 5, texts, Prompt(prefix="the "))
    assert not isinstance(plain, PackedTexts)
    seen = [(each.row, each.token_ids, each.num_tokens) for each in packed]
    assert seen == [(each.row, each.token_ids, each.num_tokens) for each in plain]
    batch, expected = packed.batch(Lane.BULK), pack(plain, Lane.BULK)
    for name in ("token_ids", "cu_seqlens", "num_prompt_tokens", "num_type0_tokens"):
        got = getattr(batch, name)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, getattr(expected, name))
    parts = list(packed.parts(BUDGET))
    assert [each.token_ids for part in parts for each in part] == [row[1] for row in seen]
    assert [each.row for part in parts for each in part] == [row[0] for row in seen]
    assert all(len(part.token_ids) <= BUDGET for part in parts)
    assert len(parts) > 10


@pytest.mark.parametrize("lane", list(Lane))
def test_rows_and_counts_are_those_of_texts_with_an_object_each(setup: Setup, lane: Lane) -> None:
    texts = texts_of(600)
    expected = setup.run(texts, setup.plain, lane)
    before = setup.meter.read()
    setup.engine.batches.clear()
    np.testing.assert_array_equal(setup.run(texts, setup.keeping, lane), expected)
    after = setup.meter.read()
    assert after.num_texts == 2 * before.num_texts == 2 * len(texts)
    assert after.num_tokens == 2 * before.num_tokens
    assert after.num_batches == 2 * before.num_batches
    assert after.num_query_batches == (after.num_batches if lane is Lane.QUERY else 0)
    assert setup.meter._num_inflight == 0
    threads = {name for name, _ in setup.engine.batches}
    own = threading.current_thread().name
    assert threads == ({own} if lane is Lane.QUERY else {"embedlib-tokenizer"})


def test_a_text_that_is_too_long_gets_an_object() -> None:
    setup = Setup(max_seq_tokens=6)
    texts = texts_of(30)
    try:
        for some in (texts, [" ".join(["city"] * 6)]):  # by many tokens, and by one
            expected = setup.run(some, setup.plain)
            np.testing.assert_array_equal(setup.run(some, setup.keeping), expected)
        refusing = setup.keeping.with_truncation("error", "right")
        with pytest.raises(SequenceTooLongError, match="row"):
            setup.run(texts, refusing)
    finally:
        setup.pipeline.close()


def test_a_text_longer_than_a_batch_is_a_part_of_its_own() -> None:
    packed = PackedTexts(Job(8, 1, Lane.BULK), 5, np.arange(9, dtype=np.int32), [6, 1, 2], 0.0)
    parts = [(part.first_row, part.lens, part.token_ids.tolist()) for part in packed.parts(4)]
    assert parts == [(5, [6], [0, 1, 2, 3, 4, 5]), (6, [1, 2], [6, 7, 8])]


def test_no_text_is_no_query() -> None:
    setup = Setup()
    assert setup.run([], setup.keeping, Lane.QUERY).shape == (0, 1)
    setup.pipeline.close()


def test_errors_name_the_row(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(3, 1, Lane.BULK, first_row=10)
    with pytest.raises(InputError, match="text 11 has no tokens"):
        setup.keeping(job, 0, ["the", " "], Prompt())
    compute = setup.engine.compute

    def spoiled(batch: Any) -> Any:
        rows = compute(batch)
        rows[batch.seq_lens == 4] = np.nan
        return rows

    monkeypatch.setattr(setup.engine, "compute", spoiled)
    with pytest.raises(EngineRunError, match=r"the result of row 1 \(4 tokens\) is not finite"):
        setup.run(["the", "the city runs", "city"], setup.keeping)
    monkeypatch.setattr(setup.engine, "compute", lambda batch: compute(batch)[1:])
    with pytest.raises(EngineRunError, match="a batch of 2 texts"):
        setup.run(["the", "city"], setup.keeping)


def test_what_a_signal_handler_raises_reaches_the_caller_as_it_is(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "is_of_handler", lambda error: True)
    monkeypatch.setattr(setup.engine, "compute", Mock(side_effect=TimeoutError("time is up")))
    for tokenizer in (setup.keeping, setup.plain):
        with pytest.raises(TimeoutError, match="time is up"):
            setup.run(["the"], tokenizer, Lane.QUERY)


def test_a_dropped_id_is_found_where_its_bytes_are_an_id() -> None:
    rows = [np.array(ids, np.int32).tobytes() for ids in ([25600, 256], [7], [100, 5, 100])]
    ids, lens = join(rows, 100)
    assert (ids.tolist(), lens) == ([25600, 256, 7, 5], [2, 1, 1])
    ids, lens = join(rows, None)
    assert (ids.tolist(), lens) == ([25600, 256, 7, 100, 5, 100], [2, 1, 3])
