"""What this engine can run: versions of TensorRT-LLM and traits of models.

This module imports neither torch nor TensorRT-LLM. A trait that is not listed here as implemented
is rejected by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from embedlib.errors import EngineUnavailableError, EngineUnsupportedError
from embedlib.models.families.table import ROWS
from embedlib.models.spec import Dense, Encoder, LayerNorm, ModelSpec, Normalize, Pooling

FIRST_VERSION: Final = (1, 3, 0, 22)
"""1.3.0rc22, the first on PyPI with `LLM.encode`, `return_raw_logits` and CUDA graphs for it."""
KNOWN_VERSIONS: Final = "1.3.0rc22 to 1.4.0rc1"
"""The versions this engine was written for."""

POOLING_MODES: Final = ("cls", "mean", "last_token")

UNKNOWN_TYPES: Final = ("llama_bidirec", "bidirlm", "bidirectional_pplx_qwen3")
"""TensorRT-LLM reads config.json with transformers, which knows these types only from code in the
model's folder; that code is never run.

Source: `load_pretrained_config` in TensorRT-LLM, _torch/pyexecutor/config_utils.py;
CONFIG_MAPPING_NAMES of transformers 5.5 to 5.17."""

NOT_IMPLEMENTED: Final = (
    *("norms_embeddings", "position_bias", "experts", "convolutions", "layer_input_size"),
    *("qk_norm_joins_heads", "norms_attention_twice", "has_v_norm", "wide_heads", "embedding_size"),
    *("relative_positions", "window_rope", "attention_cap", "attention_scale", "num_task_types"),
)
"""Traits of an `Encoder`, beside those that depend on others."""

MAX_BATCH_TOKENS: Final = 16384
"""Enough tokens to keep an H200 busy with a 7B model's matrix products; not measured yet."""


def check_version(version: str) -> None:
    """Reject a version that is too old to have the APIs this engine calls.

    A version string that cannot be parsed passes here; `load_library` checks the library itself.

    Raises:
        EngineUnavailableError: if the version is too old.
    """
    parts = re.match(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", version)
    if parts is None:
        return
    major, minor, patch, candidate = parts.groups()
    # A final release sorts after all its candidates.
    key = (int(major), int(minor), int(patch), int(candidate) if candidate else 1 << 30)
    if key < FIRST_VERSION:
        raise EngineUnavailableError(
            f"tensorrt-llm {version} is too old: it has no LLM.encode with encode_only; install "
            f"{KNOWN_VERSIONS}"
        )


def batch_tokens(spec: ModelSpec, wanted: int | None) -> int:
    """Return the token budget of a batch: `wanted` or the default, but at least one sequence."""
    return max(wanted or MAX_BATCH_TOKENS, spec.max_seq_tokens)


def check_supported(spec: ModelSpec) -> None:
    """Reject a model with a trait that this engine does not implement.

    Raises:
        EngineUnsupportedError: if the model has such traits; the message names all of them.
    """
    missing = [*_encoder_traits(spec.encoder, spec.max_seq_tokens), *_other_traits(spec)]
    if missing:
        raise EngineUnsupportedError(
            f"engine tensorrt_llm cannot run this {spec.encoder.family} model: "
            f"{'; '.join(missing)}; leave engine out"
        )


def _encoder_traits(encoder: Encoder, max_seq_tokens: int) -> Iterator[str]:
    """Yield the transformer's traits that are not implemented."""
    row = ROWS[encoder.family]
    if row.model_type in UNKNOWN_TYPES:
        yield f"model_type {row.model_type}, which its transformers does not know"
    if (encoder.norm_placement, encoder.norm) not in (("pre", "rms_norm"), ("post", "layer_norm")):
        yield f"norm_placement {encoder.norm_placement} with {encoder.norm}"
    for trait in NOT_IMPLEMENTED:
        value = getattr(encoder, trait)
        if value:
            yield f"{trait} {value:g}" if type(value) in (int, float) else trait
    if encoder.norm == "layer_norm" and not encoder.has_norm_bias:
        yield "layer norms without bias"
    if row.stores_norms_less_one:
        yield "norm weights stored minus one"
    if encoder.embedding_scale != 1:
        yield f"embedding_scale {encoder.embedding_scale:g}"
    if encoder.rope is not None and encoder.rope.kind not in ("default", "dynamic"):
        yield f"rope kind {encoder.rope.kind}"
    if encoder.has_down_bias != encoder.has_mlp_bias:
        yield "has_down_bias different from has_mlp_bias"
    if encoder.is_gated and encoder.activation != "silu":
        yield f"a gated MLP with {encoder.activation}"
    if not encoder.is_gated and encoder.activation not in ("gelu", "gelu_tanh", "relu", "silu"):
        yield f"an MLP with {encoder.activation}"
    # TensorRT-LLM's attention supports a window only together with a KV cache.
    windows = [window for window in encoder.windows if window is not None]
    if windows and min(windows) < max_seq_tokens:
        yield (
            f"attention windows of {min(windows)} tokens with texts of up to {max_seq_tokens} "
            f"(max_seq_tokens = {min(windows)} would work)"
        )


def _other_traits(spec: ModelSpec) -> Iterator[str]:
    """Yield the traits of pooling, modules and head that are not implemented."""
    pooling = spec.modules[0] if spec.modules else None
    if not isinstance(pooling, Pooling):
        yield "vectors per token"
        return
    for mode in pooling.modes:
        if mode not in POOLING_MODES:
            yield f"pooling {mode}"
    if not pooling.include_prompt:
        yield "pooling that excludes the prompt"
    for module in spec.modules[1:]:
        if not isinstance(module, (Dense, LayerNorm, Normalize)):
            yield f"the module {type(module).__name__}"
    if spec.head is not None and spec.encoder.num_token_types > 1:
        yield "pairs of texts with token types"
