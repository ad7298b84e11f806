"""What one call used: its tokens, truncated texts and times, in an object of the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedlib import Classifier, Embedder, Reranker, Usage
from embedlib.errors import EngineRunError, InputError
from embedlib.session.streaming import STREAM_JOB_TEXTS
from embedlib.testing import FakeEngine, fake_embedder, fake_vector
from tests.waiting import WAIT_SECONDS

LENGTH_LIMIT = 32
"""Tokens of a text in the fake tokenizer, which has a token for each byte."""
TEXTS = ["hello", "a", "€ä"]
NUM_TOKENS = 5 + 1 + 5

Folder = Callable[[str], Path]


def counts(usage: Usage) -> tuple[int, int, list[tuple[int, int]]]:
    return usage.num_texts, usage.num_tokens, usage.truncated


@pytest.mark.parametrize("name", ["encode", "encode_query", "encode_document"])
def test_of_every_way_to_encode(name: str) -> None:
    usage = Usage()
    with fake_embedder() as embedder:
        found = getattr(embedder, name)(TEXTS, usage=usage)
        np.testing.assert_array_equal(found, [fake_vector(text.encode()) for text in TEXTS])
    assert counts(usage) == (3, NUM_TOKENS, [])
    assert usage.total_seconds >= usage.compute_seconds > 0
    assert usage.tokenize_seconds > 0
    assert usage.queue_seconds >= 0


@pytest.mark.parametrize("name", ["aencode", "aencode_query", "aencode_document"])
def test_of_every_way_to_encode_asynchronously(name: str) -> None:
    usage = Usage()
    with fake_embedder() as embedder:
        asyncio.run(getattr(embedder, name)(TEXTS, usage=usage))
    assert counts(usage) == (3, NUM_TOKENS, [])


def test_the_prompt_is_counted() -> None:
    usage = Usage()
    with fake_embedder() as embedder:
        embedder.encode("hello", prompt="query: ", usage=usage)
    assert counts(usage) == (1, len("query: hello"), [])


def test_special_tokens_are_counted(tiny_folder: Folder) -> None:
    usage = Usage()
    with Embedder(tiny_folder("bert"), threads=1) as embedder:
        ids = embedder.tokenizer.encode("the cat").ids
        embedder.encode("the cat", usage=usage)
        assert counts(usage) == (1, len(ids), [])
        assert sum(embedder.tokenizer.encode("the cat").special_tokens_mask) == 2


def test_cut_texts_are_named_and_count_what_was_computed() -> None:
    usage = Usage()
    with fake_embedder(on_truncate="ignore") as embedder:
        embedder.encode(["a", "x" * 40, "y" * 33], usage=usage)
    assert counts(usage) == (3, 1 + 2 * LENGTH_LIMIT, [(1, 40), (2, 33)])


def test_a_divided_text_is_one_text_with_the_tokens_of_its_windows() -> None:
    usage = Usage()
    with fake_embedder(on_truncate="chunk") as embedder:
        embedder.encode("x" * 40, usage=usage)
    assert counts(usage) == (1, 40, [])


def test_a_stream_sums_up_what_was_yielded() -> None:
    usage = Usage()
    texts = ["x" * (LENGTH_LIMIT + (row == STREAM_JOB_TEXTS)) for row in range(600)]
    with fake_embedder(on_truncate="ignore") as embedder:
        stream = embedder.encode_stream(texts, usage=usage)
        next(stream)
        assert counts(usage) == (STREAM_JOB_TEXTS, STREAM_JOB_TEXTS * LENGTH_LIMIT, [])
        assert len(list(stream)) == 599
    cut = [(STREAM_JOB_TEXTS, LENGTH_LIMIT + 1)]
    assert counts(usage) == (600, 600 * LENGTH_LIMIT, cut)


def test_of_a_future_it_is_filled_before_the_future_is_resolved() -> None:
    one, many = Usage(), Usage()
    seen: list[tuple[int, int]] = []
    engine = FakeEngine()
    engine.hold()
    with fake_embedder(engine) as embedder:
        futures = [
            embedder.submit("hello", usage=one),
            embedder.submit_batch(TEXTS, usage=many),
        ]
        for future, usage in zip(futures, (one, many), strict=True):
            future.add_done_callback(
                lambda _, usage=usage: seen.append((usage.num_texts, usage.num_tokens))
            )
        assert counts(one) == counts(many) == (0, 0, [])
        engine.release()
        for future in futures:
            future.result(WAIT_SECONDS)
    assert sorted(seen) == [(1, 5), (3, NUM_TOKENS)]


def test_calls_that_share_one_are_summed_up() -> None:
    usage = Usage()
    with fake_embedder() as embedder:
        embedder.encode("hello", usage=usage)
        embedder.encode(TEXTS, usage=usage)
        embedder.encode([], usage=usage)
    assert counts(usage) == (4, 5 + NUM_TOKENS, [])


def test_a_call_that_fails_adds_nothing() -> None:
    usage = Usage()
    engine = FakeEngine()
    engine.poison(ord("b"))
    with fake_embedder(engine) as embedder:
        with pytest.raises(EngineRunError):
            embedder.encode(["good", "bad"], usage=usage)
        with pytest.raises(InputError):
            embedder.encode([None], usage=usage)  # type: ignore[list-item]
    assert counts(usage) == (0, 0, [])


def test_of_outputs_that_are_made_of_tokens(tiny_folder: Folder) -> None:
    usage = Usage()
    with Embedder(tiny_folder("bert"), threads=1) as embedder:
        found = embedder.encode(["the cat"], output_value="token_embeddings", usage=usage)
    assert counts(usage) == (1, len(found[0]), [])


def test_of_a_reranker(tiny_folder: Folder) -> None:
    documents = ["two dogs ran", "the cat"]
    pairs = [("a cat", document) for document in documents]
    with Reranker(tiny_folder("bert-reranker"), threads=1) as reranker:
        num_tokens = sum(len(reranker.tokenizer.encode(*pair).ids) for pair in pairs)
        calls: list[Callable[[Usage], Any]] = [
            lambda usage: reranker.rank("a cat", documents, usage=usage),
            lambda usage: asyncio.run(reranker.arank("a cat", documents, usage=usage)),
            lambda usage: reranker.predict(pairs, usage=usage),
            lambda usage: asyncio.run(reranker.apredict(pairs, usage=usage)),
        ]
        for call in calls:
            usage = Usage()
            call(usage)
            assert counts(usage) == (2, num_tokens, [])


def test_of_a_classifier(tiny_folder: Folder) -> None:
    texts = ["two dogs ran", "the cat"]
    with Classifier(tiny_folder("bert-classifier"), threads=1) as classifier:
        num_tokens = sum(len(classifier.tokenizer.encode(text).ids) for text in texts)
        calls: list[Callable[[Usage], Any]] = [
            lambda usage: classifier.predict(texts, usage=usage),
            lambda usage: asyncio.run(classifier.apredict(texts, usage=usage)),
            lambda usage: classifier.predict_scores(texts, usage=usage),
            lambda usage: asyncio.run(classifier.apredict_scores(texts, usage=usage)),
        ]
        for call in calls:
            usage = Usage()
            call(usage)
            assert counts(usage) == (2, num_tokens, [])
