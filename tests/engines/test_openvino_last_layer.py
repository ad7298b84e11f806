"""Computing the last layer only for the pooled token gives the same vectors."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Lane
from embedlib.engines.openvino import graph as graph_module
from embedlib.engines.openvino.engine import OpenVINOEngine
from embedlib.models.compiled.int8 import quantize_rows
from embedlib.models.spec import Encoder, ModelSpec, Pooling, PoolingMode, PositionBias, Rope
from embedlib.models.weights.tensor_roles import encoder_shapes
from embedlib.testing import fake_spec, make_batch
from tests.comparing import relative_errors

WAIT_SECONDS = 30
SKIPPED = 7
MAX_TOKENS = 24
HIDDEN = 32
"""Less than a quantization group: activations stay float32 even where weights are int8."""
BATCHES = ((1,), (MAX_TOKENS,), (1, MAX_TOKENS, 5), (9, 2, 3, 17), (6, 6))
"""Sequence lengths of each batch."""

PLAIN = Encoder(
    family="bert",
    vocab_size=40,
    hidden_size=HIDDEN,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=8,
    intermediate_size=48,
    activation="gelu",
    is_gated=False,
    norm="layer_norm",
    norm_eps=1e-6,
    norm_placement="post",
    num_positions=MAX_TOKENS,
    windows=(None, None),
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
    has_down_bias=True,
)
NO_BIAS: dict[str, Any] = dict.fromkeys(
    ("has_qkv_bias", "has_output_bias", "has_mlp_bias", "has_down_bias"), False
)
GATED: dict[str, Any] = {"is_gated": True, "activation": "silu", "norm": "rms_norm"}
CLS = Pooling(modes=("cls",))
CLS_BEHIND_PROMPT = Pooling(modes=("cls",), include_prompt=False)
LAST = Pooling(modes=("last_token",))
NOT_THE_SKIPPED = Pooling(modes=("last_token",), skipped_token_id=SKIPPED, include_prompt=False)

CASES: dict[str, tuple[Encoder, Pooling, bool]] = {
    "one-layer": (
        replace(PLAIN, num_layers=1, windows=(None,), num_token_types=2, attention_scale=1.0),
        CLS,
        False,
    ),
    "position-bias-window": (
        replace(
            PLAIN,
            num_kv_heads=2,
            norm_placement="pre",
            position_bias=PositionBias(num_buckets=8, max_distance=12),
            windows=(None, 4),
            **NO_BIAS,
        ),
        CLS_BEHIND_PROMPT,
        False,
    ),
    "position-bias-causal-window-int8": (
        replace(
            PLAIN,
            num_kv_heads=1,
            position_bias=PositionBias(num_buckets=8, max_distance=12),
            is_causal=True,
            windows=(2, 3),
            has_qkv_bias=False,
        ),
        NOT_THE_SKIPPED,
        True,
    ),
    "capped-sandwich-window": (
        replace(
            PLAIN,
            **GATED,
            num_kv_heads=2,
            norm_placement="sandwich",
            rope=Rope(kind="llama3", factor=8.0, original_max_positions=16),
            has_qk_norm=True,
            is_causal=True,
            windows=(None, 3),
            attention_cap=2.0,
        ),
        LAST,
        False,
    ),
    "two-ropes": (
        replace(
            PLAIN,
            norm_placement="pre",
            norms_embeddings=True,
            has_norm_bias=False,
            rope=Rope(theta=1e6),
            window_rope=Rope(kind="yarn", factor=4.0, original_max_positions=8),
            windows=(5, 30),
        ),
        NOT_THE_SKIPPED,
        False,
    ),
    "rope-int8": (
        replace(
            PLAIN,
            **GATED,
            num_heads=2,
            num_kv_heads=1,
            head_dim=12,
            norm_placement="pre",
            rope=Rope(kind="linear", factor=2.0),
            is_causal=True,
        ),
        NOT_THE_SKIPPED,
        True,
    ),
    "norm-of-keys": (
        replace(PLAIN, num_layers=1, windows=(1,), has_qk_norm=True, num_kv_heads=2),
        CLS,
        False,
    ),
    "cap": (replace(PLAIN, is_causal=True, attention_cap=1.0), LAST, False),
}


def weights_of(spec: ModelSpec, dice: np.random.Generator) -> dict[str, NDArray[Any]]:
    weights = {}
    for role, shape in encoder_shapes(spec.encoder).items():
        values = dice.standard_normal(shape).astype(np.float32)
        weights[role] = 1 + values / 3 if role.endswith("norm.weight") else values / 2
    return weights


def in_int8(weights: dict[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], ...]:
    """Return the weights with linear layers in int8, and the same weights dequantized."""
    codes, floats = dict(weights), dict(weights)
    for role, values in weights.items():
        if role.startswith("layers.") and values.ndim == 2:
            codes[role], scales = quantize_rows(values)
            codes[f"{role}_scale"] = scales
            floats[role] = codes[role] * scales[:, None]
    return codes, floats


def run(engine: OpenVINOEngine, ids: list[NDArray[np.int32]], lane: Lane) -> NDArray[np.float32]:
    return computed(engine, make_batch(ids, lane, num_prompt_tokens=[len(row) // 2 for row in ids]))


def computed(engine: OpenVINOEngine, batch: Batch) -> NDArray[np.float32]:
    done = threading.Event()
    pending = engine.submit(batch, done.set)
    assert done.wait(WAIT_SECONDS)
    return pending.result()


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, pooling, is_int8 = CASES[name]
    spec = replace(fake_spec(MAX_TOKENS), encoder=encoder, modules=(pooling,), embedding_dim=HIDDEN)
    dice = np.random.default_rng(0)
    weights = floats = weights_of(spec, dice)
    if is_int8:
        weights, floats = in_int8(weights)
    with monkeypatch.context() as patched:
        patched.setattr(graph_module._GraphBuilder, "_pooled_place", lambda builder: None)
        whole = OpenVINOEngine(spec, floats, threads=1)
    # The second comes from OpenVINO's cache, which has lost parts of a graph before.
    engines = [OpenVINOEngine(spec, weights, threads=1, cache_dir=tmp_path) for _ in range(2)]
    for lengths in BATCHES:
        ids = [dice.integers(0, encoder.vocab_size, length, np.int32) for length in lengths]
        ids[0][-1] = SKIPPED
        right = run(whole, ids, Lane.BULK)
        for engine in engines:
            for lane in Lane:
                error = np.linalg.norm(run(engine, ids, lane) - right, axis=1)
                assert (error / np.linalg.norm(right, axis=1)).max() <= 2e-5


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
        computed(OpenVINOEngine(replace(spec, modules=modules), weights, threads=1), batch)
        for modules in ((pooling,), ())
    )
    first, last = tokens[[0, 5 + 2, 9]], tokens[[4, 8, 11]]
    assert relative_errors(vectors[:, :HIDDEN], first).max() <= 2e-5
    assert relative_errors(vectors[:, -HIDDEN:], last if len(modes) > 1 else first).max() <= 2e-5
