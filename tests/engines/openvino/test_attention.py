"""Attention in blocks gives the same vectors as in one piece; where it is used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.engines.openvino.graphs import attention, attention_blocks, graph
from embedlib.engines.openvino.kept.model_cache import ModelCache
from embedlib.engines.openvino.plans.layout import Layout
from embedlib.engines.openvino.sizes import block_sizes
from embedlib.engines.openvino.sizes.block_sizes import is_in_blocks
from embedlib.models.encoder_parts import PositionBias
from embedlib.testing import fake_spec, make_batch
from tests.comparing import relative_errors
from tests.tiny_encoders import CASES, HIDDEN, MAX_TOKENS, PLAIN, computed, weights_of

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
    monkeypatch.setattr(graph, "is_in_blocks", lambda *_, **__: True)
    monkeypatch.setattr(attention_blocks, "MAX_WHOLE_TOKENS", MAX_WHOLE)
    monkeypatch.setattr(attention_blocks, "BLOCK_SCORES", 5 * MAX_TOKENS)
    monkeypatch.setattr(attention_blocks, "MIN_BLOCK_QUERIES", 2)
    # Its graph is imported from the cache; OpenVINO's has lost parts of one before.
    cache = ModelCache(tmp_path, "these weights")
    in_blocks = OpenVINOEngine(spec, weights, Layout(threads=1), cache=cache)
    for lengths in BATCHES:
        ids = [dice.integers(0, encoder.vocab_size, length, np.int32) for length in lengths]
        batch = make_batch(ids)
        assert relative_errors(computed(in_blocks, batch), computed(whole, batch)).max() <= 2e-5


@pytest.mark.parametrize(
    ("changes", "folds"),
    [
        ({"is_causal": True}, True),
        ({"is_causal": True, "windows": (3, 3)}, True),
        ({}, True),
        ({"windows": (3, 3)}, False),
        ({"num_kv_heads": 4}, False),
        ({"position_bias": PositionBias(num_buckets=8, max_distance=12)}, False),
    ],
    ids=str,
)
def test_key_heads_are_folded_unless_a_mask_of_pairs_would_be_copied_for_each(
    changes: dict[str, Any], folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = replace(PLAIN, **{"num_kv_heads": 2, "norm_placement": "pre", **changes})
    spec = replace(fake_spec(MAX_TOKENS), encoder=encoder, modules=(), embedding_dim=HIDDEN)
    folded = Mock(side_effect=attention._folded)
    monkeypatch.setattr(attention, "_folded", folded)
    OpenVINOEngine(spec, weights_of(spec, np.random.default_rng(0)), Layout(threads=1)).close()
    assert bool(folded.call_count) == folds


def test_what_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sizes, "scores_are_kept", lambda encoder: encoder.attention_cap)
    plain = CASES["one-layer"][0]
    causal = replace(plain, is_causal=True)
    assert not is_in_blocks(plain, None, 1 << 17), "the mask has one number for each key"
    assert not is_in_blocks(causal, None, 40_960)
    assert is_in_blocks(causal, None, 1 << 17), "the mask has a byte for each pair"
    for encoder in (plain, causal):
        assert is_in_blocks(encoder, 128, 8_192)
        assert not is_in_blocks(encoder, 8_192, 8_192), "the window has all"
        assert not is_in_blocks(encoder, 128, 1_024), "so little is soon computed"
        assert not is_in_blocks(encoder, 128, 8_192, is_bf16=True), "OpenVINO's would be wrong"
    capped = CASES["cap"][0]
    assert is_in_blocks(capped, None, 8_192)
    assert not is_in_blocks(capped, None, 1_024)


def test_where_all_scores_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"avx2"}
    machine = type("Machine", (), {"cpu_features": lambda _: flags})
    monkeypatch.setattr(block_sizes, "Machine", machine)
    kept = {name: block_sizes.scores_are_kept(encoder) for name, (encoder, *_) in CASES.items()}
    assert [name for name, is_kept in kept.items() if is_kept] == [
        name for name in CASES if "cap" in name or "position-bias" in name
    ]
    flags.clear()
    assert all(block_sizes.scores_are_kept(encoder) for encoder, *_ in CASES.values())
