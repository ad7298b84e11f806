"""Attention in blocks gives the same vectors as in one piece, in memory linear in the length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embedlib.engines.openvino import attention
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.layout import Layout
from embedlib.engines.openvino.model_cache import ModelCache
from embedlib.testing import fake_spec, make_batch
from tests.comparing import relative_errors
from tests.tiny_encoders import CASES, HIDDEN, MAX_TOKENS, computed, weights_of

MAX_WHOLE = 6
BATCHES = ((MAX_TOKENS,), (MAX_WHOLE + 1, 1), (3, MAX_TOKENS, 19), (MAX_WHOLE, 2), (20, 4))
"""Sequence lengths of each batch: only one is computed in one piece."""


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_the_same_in_blocks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _, _ = CASES[name]
    # Without pooling: every token counts.
    spec = replace(fake_spec(MAX_TOKENS), encoder=encoder, modules=(), embedding_dim=HIDDEN)
    dice = np.random.default_rng(0)
    weights = weights_of(spec, dice)
    whole = OpenVINOEngine(spec, weights, Layout(threads=1))
    monkeypatch.setattr(attention, "MAX_WHOLE_TOKENS", MAX_WHOLE)
    monkeypatch.setattr(attention, "BLOCK_SCORES", 5 * MAX_TOKENS)
    monkeypatch.setattr(attention, "MIN_BLOCK_QUERIES", 2)
    # The second comes from the cache; OpenVINO's has lost parts of a graph before.
    cache = ModelCache(tmp_path, "these weights")
    engines = [OpenVINOEngine(spec, weights, Layout(threads=1), cache=cache) for _ in range(2)]
    for lengths in BATCHES:
        ids = [dice.integers(0, encoder.vocab_size, length, np.int32) for length in lengths]
        batch = make_batch(ids)
        right = computed(whole, batch)
        for engine in engines:
            assert relative_errors(computed(engine, batch), right).max() <= 2e-5
