"""What this engine cannot lower, told by name; without torch."""

from __future__ import annotations

from typing import Final

from embedlib.errors import EngineUnsupportedError
from embedlib.models.compiled.pooled_rows import POOLED_ROWS, pooled_modes
from embedlib.models.spec import (
    Dense,
    Encoder,
    LayerNorm,
    ModelSpec,
    Normalize,
    Pooling,
    RoundTanh,
)
from embedlib.models.weights.tensor_roles import encoder_shapes, fused_roles, linear_roles

FP8_MULTIPLE: Final = 16
"""Rows and columns of an FP8 weight must be multiples of it. Source: `_scaled_mm_cuda` in PyTorch,
aten/src/ATen/native/cuda/Blas.cpp: the trailing dimensions must be divisible by 16."""
MAX_HEAD_DIM: Final = 256
"""A tile of queries, keys and values of larger heads does not fit into shared memory."""

NOT_IMPLEMENTED: Final = ("embedding_size", "layer_input_size", "has_v_norm", "wide_heads")
"""Traits of an `Encoder` that no step computes: the first of ALBERT and small ELECTRAs, the others
of EmbeddingGemma 2."""

COMPUTED_MODULES: Final = (Pooling, Dense, LayerNorm, Normalize, RoundTanh)
"""Those that the executor computes behind the plan."""


def check_supported(spec: ModelSpec, quantized: frozenset[str], *, splits_pooled: bool) -> None:
    """Reject what no step of a plan computes.

    Args:
        spec: the model.
        quantized: roles of linear layers in FP8.
        splits_pooled: whether pooled rows are computed without FP8.

    Raises:
        EngineUnsupportedError: the message names the trait.
    """
    encoder = spec.encoder
    _check_encoder(encoder)
    pooling = next((m for m in spec.modules if isinstance(m, Pooling)), None)
    modes = ", ".join(pooling.modes) if pooling else "none"
    if pooling and pooling.skipped_token_id is not None and not pooled_modes(spec):
        raise EngineUnsupportedError(
            f"engine cuda: skipped_token_id with the pooling modes {modes}; only last_token "
            "and cls are supported; use engine='openvino'"
        )
    for module in spec.modules:
        if not isinstance(module, COMPUTED_MODULES):
            raise EngineUnsupportedError(
                f"engine cuda: the module {type(module).__name__} is not implemented; use "
                "engine='openvino'"
            )
    if splits_pooled and not pooled_modes(spec):
        raise EngineUnsupportedError(
            f"engine cuda: excluded has {POOLED_ROWS!r}, and the pooling modes are {modes}; "
            "only last_token and cls are supported; name linear layers"
        )
    _check_quantized(encoder, quantized)


def _check_encoder(encoder: Encoder) -> None:
    """Reject traits that the kernels do not support."""
    if encoder.head_dim > MAX_HEAD_DIM:
        raise EngineUnsupportedError(
            f"engine cuda: head_dim = {encoder.head_dim}; the attention kernel allows at most "
            f"{MAX_HEAD_DIM}; leave engine out"
        )
    for trait in NOT_IMPLEMENTED:
        if getattr(encoder, trait):
            raise EngineUnsupportedError(
                f"engine cuda: {trait} is not implemented; use engine='openvino'"
            )
    # Keys that heads share have no products of their own, nor have those that are kept.
    is_shared = encoder.num_kv_heads < encoder.num_heads
    if encoder.relative_positions is not None and (is_shared or encoder.is_causal):
        raise EngineUnsupportedError(
            "engine cuda: relative_positions of a causal model, or of heads that share keys, are "
            "not implemented; use engine='openvino'"
        )
    # The kernel tells a text's end by the positions, and knows no token of a kept prefix.
    if encoder.convolutions is not None and (encoder.rope is None or encoder.is_causal):
        raise EngineUnsupportedError(
            "engine cuda: convolutions of a causal model, or of one without rotary positions, are "
            "not implemented; use engine='openvino'"
        )


def _check_quantized(encoder: Encoder, quantized: frozenset[str]) -> None:
    """Reject FP8 layers of unsupported sizes, and fused layers of which only some are FP8."""
    known, shapes = linear_roles(encoder), encoder_shapes(encoder)
    for role in sorted(quantized):
        if role not in known:
            raise EngineUnsupportedError(
                f"engine cuda: {role!r} is not a linear layer of this model"
            )
        rows, columns = shapes[f"{role}.weight"]
        if rows % FP8_MULTIPLE or columns % FP8_MULTIPLE:
            raise EngineUnsupportedError(
                f"engine cuda: {role} is {rows} x {columns}; FP8 needs multiples of "
                f"{FP8_MULTIPLE}; use precision='bf16'"
            )
        fused = fused_roles(role, known)
        if missing := set(fused) - quantized:
            group = ", ".join(other.rpartition(".")[2] for other in fused)
            raise EngineUnsupportedError(
                f"engine cuda: {role} is FP8 and {min(missing)} is not; {group} are computed as "
                "one matrix; exclude all of them or none"
            )
