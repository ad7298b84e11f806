"""Where attention is computed in blocks, and how large they are; see `attention_blocks`."""

from __future__ import annotations

from typing import Final

from embedlib.engines.machine import Machine
from embedlib.models.spec import Encoder

MAX_WHOLE_TOKENS: Final = 1024
"""Up to so many, attention in one piece is small enough whatever is added to the scores."""
MAX_MASK_TOKENS: Final = 40_960
"""Most tokens of a causal model whose mask, a byte for each pair of tokens, is made whole: 1.6 GiB,
beside more for the activations. Source: docs/measurements/attention.md, long texts."""
BLOCK_SCORES: Final = 1 << 19
"""Scores of a block, per sequence and head: its queries times all keys. Source: the same."""
MIN_BLOCK_QUERIES: Final = 16
"""Chosen: `BLOCK_SCORES` gives fewer from 32,768 keys on, and a product of few rows computes less
while it reads as much; it was not measured."""
CAUSAL_STEPS: Final = 16
"""Different numbers of keys that the blocks of a causal layer take. With so many, a block computes
a thirty-second of all scores in vain, on average."""


def is_in_blocks(
    encoder: Encoder, window: int | None, max_seq_tokens: int, *, is_bf16: bool = False
) -> bool:
    """Return whether a layer's attention is computed in blocks, by a loop.

    In one piece the library fuses products, mask and softmax, and holds few scores at once. With a
    cap, or on a CPU without AVX2, that was not measured; a bias has a number for each head and
    pair; and of a sliding window everything would be computed. In bf16 nothing is computed in
    blocks: OpenVINO 2026.4 then gives wrong vectors, see docs/fidelity.md, bf16 on a CPU.

    Args:
        encoder: the transformer.
        window: the layer's; see `Encoder.windows`.
        max_seq_tokens: the longest text.
        is_bf16: whether the graph is computed in bf16.
    """
    if is_bf16 or max_seq_tokens <= MAX_WHOLE_TOKENS:
        return False
    is_windowed = window is not None and window < max_seq_tokens
    is_mask_large = encoder.is_causal and max_seq_tokens > MAX_MASK_TOKENS
    return is_windowed or is_mask_large or scores_are_kept(encoder)


def scores_are_kept(encoder: Encoder) -> bool:
    """Return whether attention in one piece may hold all scores of all heads at once."""
    is_changed = encoder.attention_cap is not None or encoder.position_bias is not None
    return is_changed or "avx2" not in Machine().cpu_features()


def num_scores(num_tokens: int) -> int:
    """Return how many scores a sequence has in memory at once in blocks, per head."""
    if num_tokens <= MAX_WHOLE_TOKENS:
        return num_tokens**2
    return max(BLOCK_SCORES, MIN_BLOCK_QUERIES * num_tokens)
