"""Which prefixes are worth keeping, and how many tokens of them are kept at most."""

from __future__ import annotations

from typing import Final

from embedlib.engines.first_tokens import can_keep_prefix
from embedlib.models.spec import Encoder, ModelSpec

MIN_PREFIX_TOKENS: Final = 16
"""A shorter prefix saves little beside reading the weights."""
MAX_KEPT_TOKENS: Final = 1024
"""Of all prefixes that a lane has found: 256 MiB for 32 layers with 8 key heads of 128 numbers."""


def max_kept_bytes(spec: ModelSpec, *, is_bf16: bool) -> int:
    """Return what the prefixes of both lanes take at most.

    Args:
        spec: the model.
        is_bf16: whether it is computed in bf16.
    """
    if not can_keep_prefix(spec):
        return 0
    return 2 * MAX_KEPT_TOKENS * bytes_per_token(spec.encoder, is_bf16=is_bf16)


def bytes_per_token(encoder: Encoder, *, is_bf16: bool) -> int:
    """Return what a kept token takes: keys and values of every layer.

    The last layer keeps its input in place of values. Source: `KeptTokens`.
    """
    key = encoder.num_kv_heads * encoder.head_dim
    return (2 if is_bf16 else 4) * (2 * key * encoder.num_layers - key + encoder.hidden_size)
