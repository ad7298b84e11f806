"""Tiny encoders that differ in all that attention depends on, and seeded weights for them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedlib.engines.base import Batch, Engine
from embedlib.models.compiled.int8 import INT8_GROUPS, dequantize, quantize_groups
from embedlib.models.encoder_parts import PositionBias, RelativePositions, Rope, WideHeads
from embedlib.models.spec import Encoder, ModelSpec, Pooling
from embedlib.models.weights.tensor_roles import encoder_shapes
from tests.waiting import WAIT_SECONDS

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
    "grouped": (
        replace(PLAIN, num_kv_heads=2, norm_placement="pre", rope=Rope(), has_qk_norm=True),
        LAST,
        False,
    ),
    "norm-of-values": (
        replace(PLAIN, num_kv_heads=2, norm_placement="pre", rope=Rope(), has_v_norm=True),
        CLS,
        False,
    ),
    "wide-heads-rope-in-windows": (
        replace(
            PLAIN,
            num_kv_heads=2,
            norm_placement="pre",
            window_rope=Rope(),
            wide_heads=WideHeads(head_dim=16, num_kv_heads=1),
            windows=(None, 3),
        ),
        CLS,
        False,
    ),
    "rope-in-windows": (
        replace(
            PLAIN, num_layers=3, norm_placement="pre", window_rope=Rope(), windows=(3, None, 3)
        ),
        CLS,
        False,
    ),
    "cap": (replace(PLAIN, is_causal=True, attention_cap=1.0), LAST, False),
    "distances-int8": (
        replace(
            PLAIN,
            relative_positions=RelativePositions(num_buckets=8, max_distance=MAX_TOKENS),
            attention_scale=0.2,
        ),
        CLS_BEHIND_PROMPT,
        True,
    ),
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
            codes[role], scales = quantize_groups(values, INT8_GROUPS["int8"])
            codes[f"{role}_scale"] = scales
            floats[role] = dequantize(codes[role], scales)
    return codes, floats


def computed(engine: Engine, batch: Batch) -> NDArray[np.float32]:
    done = threading.Event()
    pending = engine.submit(batch, done.set)
    assert done.wait(WAIT_SECONDS)
    return pending.result()
