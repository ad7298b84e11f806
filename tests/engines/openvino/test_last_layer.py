"""Computing the last layer only for the pooled token gives the same vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Lane
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import graph as graph_module
from embedlib.engines.openvino.kept.model_cache import ModelCache
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.models.spec import Pooling, PoolingMode
from embedlib.testing import fake_spec, make_batch
from tests.comparing import relative_errors
from tests.tiny_encoders import (
    BATCHES,
    CASES,
    HIDDEN,
    MAX_TOKENS,
    PLAIN,
    SKIPPED,
    computed,
    in_int8,
    weights_of,
)


def run(engine: OpenVINOEngine, ids: list[NDArray[np.int32]], lane: Lane) -> NDArray[np.float32]:
    return computed(engine, make_batch(ids, lane, num_prompt_tokens=[len(row) // 2 for row in ids]))


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, pooling, is_int8 = CASES[name]
    spec = replace(fake_spec(MAX_TOKENS), encoder=encoder, modules=(pooling,), embedding_dim=HIDDEN)
    dice = np.random.default_rng(0)
    weights = floats = weights_of(spec, dice)
    if is_int8:
        weights, floats = in_int8(weights)
    with monkeypatch.context() as patched:
        patched.setattr(graph_module.Pooler, "only_place", lambda pooler, pooling: None)
        whole = OpenVINOEngine(spec, floats, Layout(threads=1))
    # Its graph is imported from the cache; OpenVINO's has lost parts of one before.
    cache = ModelCache(tmp_path, "these weights")
    engine = OpenVINOEngine(spec, weights, Layout(threads=1), cache=cache)
    for lengths in BATCHES:
        ids = [dice.integers(0, encoder.vocab_size, length, np.int32) for length in lengths]
        ids[0][-1] = SKIPPED
        right = run(whole, ids, Lane.BULK)
        for lane in Lane:
            assert relative_errors(run(engine, ids, lane), right).max() <= 2e-5


@pytest.mark.parametrize("modes", [("cls",), ("cls", "mean", "last_token")])
def test_cls_takes_the_first_token_behind_the_prompt(modes: tuple[PoolingMode, ...]) -> None:
    dice = np.random.default_rng(0)
    ids = [dice.integers(0, PLAIN.vocab_size, length, np.int32) for length in (5, 4, 3)]
    spec = replace(fake_spec(MAX_TOKENS), encoder=PLAIN, embedding_dim=HIDDEN)
    weights = weights_of(spec, dice)
    # Of a sequence that is all prompt, sentence-transformers takes the first token.
    batch = make_batch(ids, num_prompt_tokens=[0, 2, 3])
    pooling = Pooling(modes=modes, include_prompt=False)
    vectors, tokens = (
        computed(OpenVINOEngine(replace(spec, modules=modules), weights, Layout(threads=1)), batch)
        for modules in ((pooling,), ())
    )
    first, last = tokens[[0, 5 + 2, 9]], tokens[[4, 8, 11]]
    assert relative_errors(vectors[:, :HIDDEN], first).max() <= 2e-5
    assert relative_errors(vectors[:, -HIDDEN:], last if len(modes) > 1 else first).max() <= 2e-5
