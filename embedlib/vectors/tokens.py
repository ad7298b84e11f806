"""Results computed from per-token vectors: vectors of spans, lexical weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from embedlib.errors import InputError

Span = tuple[int, int]
"""Start and end of a range of characters; the end is exclusive."""


def pool_spans(
    vectors: NDArray[np.float32],
    offsets: Sequence[Span],
    spans: Sequence[Span],
    text: str,
    name: str = "chunks",
) -> NDArray[np.float32]:
    """Return float32[C, H]: for each of C spans, the mean of its tokens' vectors.

    A token belongs to a span if they share a character. Each token's vector was computed with
    attention over the whole text, so a chunk's vector includes the context around the chunk.

    Source: Günther et al. 2024, "Late Chunking: Contextual Chunk Embeddings Using Long-Context
    Embedding Models", arXiv:2409.04701, section 3.

    Args:
        vectors: float32[L, H], of the text's tokens.
        offsets: the characters of each token; empty for special tokens.
        spans: the characters of each chunk; they may overlap and need not cover the text.
        text: the whole text.
        name: what messages call the spans.

    Raises:
        InputError: if a span is not inside the text or has no token: it contains only whitespace,
            or starts after the point where the text was truncated.
    """
    starts = np.array([start for start, _ in offsets])
    ends = np.array([end for _, end in offsets])
    pooled = np.empty((len(spans), vectors.shape[1]), np.float32)
    for index, (start, end) in enumerate(spans):
        if not 0 <= start < end <= len(text):
            raise InputError(
                f"{name}[{index}] = {(start, end)}; the text has characters 0 to {len(text)}"
            )
        shares = (starts < end) & (ends > start) & (starts < ends)
        if not shares.any():
            raise InputError(
                f"{name}[{index}] = {(start, end)} has no token: {text[start:end]!r:.40} is blank, "
                f"or after character {int(ends.max(initial=0))}, where the text was truncated"
            )
        pooled[index] = vectors[shares].mean(axis=0)
    return pooled


def lexical_weights(
    weights: NDArray[np.float32], token_ids: Sequence[int], ignored_ids: Collection[int]
) -> dict[int, float]:
    """Return a dict of token id to the largest weight of that token in the text, if above 0.

    Source: `_process_token_weights` in FlagEmbedding 1.3, inference/embedder/encoder_only/m3.py.

    Args:
        weights: float32[L, 1], of the text's tokens.
        token_ids: the ids of the L tokens.
        ignored_ids: ids that get no weight: special tokens.
    """
    greatest: dict[int, float] = {}
    for token_id, weight in zip(token_ids, weights[:, 0].tolist(), strict=True):
        if weight > greatest.get(token_id, 0.0) and token_id not in ignored_ids:
            greatest[token_id] = weight
    return greatest
