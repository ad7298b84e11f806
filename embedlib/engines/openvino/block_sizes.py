"""Where attention is computed in blocks, and how large they are; see `attention`."""

from __future__ import annotations

from typing import Final

MAX_WHOLE_TOKENS: Final = 1024
"""Longer batches are computed in blocks. Source: docs/benchmarks.md, long texts."""
BLOCK_SCORES: Final = 1 << 19
"""Scores of a block, per sequence and head: its queries times all keys. Source: the same."""
MIN_BLOCK_QUERIES: Final = 16
CAUSAL_STEPS: Final = 16
"""Different numbers of keys that the blocks of a causal layer take. With so many, a block computes
a thirty-second of all scores in vain, on average."""


def num_scores(num_tokens: int) -> int:
    """Return how many scores a sequence has in memory at once, per head."""
    if num_tokens <= MAX_WHOLE_TOKENS:
        return num_tokens**2
    return max(BLOCK_SCORES, MIN_BLOCK_QUERIES * num_tokens)
