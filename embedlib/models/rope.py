"""Rotary frequencies: the angle by which each pair of a head's dimensions turns per position."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from embedlib.models.encoder_parts import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> tuple[NDArray[np.float64], float]:
    """Return the angle per position of each pair of dimensions, and the factor on cos and sin.

    Source: `modeling_rope_utils.py` of transformers 5.5, which computes in float32; this computes
    in float64.

    Args:
        rope: the kind and its parameters.
        head_dim: dimensions of one head; all of them are rotated.

    Returns:
        float64[head_dim / 2], and the factor that cos and sin are multiplied by.
    """
    plain = rope.theta ** (-np.arange(0, head_dim, 2) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim), _yarn_attention_factor(rope)
    # `dynamic` changes the base only for sequences beyond the trained length, which a model's
    # length limit never exceeds.
    return plain, 1.0


def _llama3(rope: Rope, plain: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide the frequencies of long waves by the factor, keep the short ones, blend in between.

    Source: Llama 3.1, `apply_scaling` in meta-llama/llama-models, models/llama3/model.py.
    """
    # Number of turns of each wave within the original length.
    turns = rope.original_max_positions * plain / (2 * math.pi)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 - blend) * plain / rope.factor + blend * plain


def _yarn(rope: Rope, plain: NDArray[np.float64], head_dim: int) -> NDArray[np.float64]:
    """Slow down pairs that make few turns within the original length, along a linear ramp.

    Source: YaRN, https://arxiv.org/abs/2309.00071, section 3.2.
    """

    def pair_of(turns: float) -> float:
        """Return the (fractional) pair that makes this many turns within the original length."""
        wave_length = rope.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(wave_length) / (2 * math.log(rope.theta))

    first, last = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # avoids a division by zero; transformers adds the same value
    slowed = np.clip((np.arange(head_dim // 2) - first) / (last - first), 0.0, 1.0)
    frequencies: NDArray[np.float64] = plain / rope.factor * slowed + plain * (1 - slowed)
    return frequencies


def _yarn_attention_factor(rope: Rope) -> float:
    """Return the factor on cos and sin that YaRN pairs with its frequencies."""

    def scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)
