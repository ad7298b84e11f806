"""Pooling in plain torch; a part of `reference`."""

from __future__ import annotations

from typing import Final

import torch

from embedlib.models.spec import PoolingMode

MASKED: Final = float(torch.finfo(torch.float32).min / 2)
"""Result of max pooling over no tokens, as in the float32 reference engine."""


def pool(
    hidden: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_left_out: torch.Tensor | None,
    modes: tuple[PoolingMode, ...],
    out: torch.Tensor,
) -> None:
    """out[b] = the vectors of all modes for sequence b, concatenated.

    Source: `Pooling._forward_padded` of sentence-transformers 6.2: cls is the first token that is
    not left out, or the first of all if none is kept.

    Args:
        hidden: float32[T, H].
        cu_seqlens: int32[B + 1]; the result of a sequence without tokens is zeros.
        num_left_out: int32[B], first tokens of each sequence to leave out; None: use all tokens.
        modes: in the order of the result.
        out: float32[B, modes * H].
    """
    ends = cu_seqlens.tolist()
    skipped = [0] * (len(ends) - 1) if num_left_out is None else num_left_out.tolist()
    out.zero_()
    for row, (start, end, skip) in enumerate(zip(ends[:-1], ends[1:], skipped, strict=True)):
        if start < end:
            vectors = [_pooled(hidden[start:end], skip, mode) for mode in modes]
            out[row] = torch.cat(vectors)


def _pooled(tokens: torch.Tensor, skip: int, mode: PoolingMode) -> torch.Tensor:
    """Pool the tokens float32[L, H] of one sequence into float32[H]."""
    if mode == "cls":
        return tokens[skip if skip < len(tokens) else 0]
    if mode == "last_token":
        return tokens[-1]
    counted = tokens[skip:]
    if mode == "max":
        return torch.cat([counted, torch.full_like(tokens[:1], MASKED)]).amax(dim=0)
    weights = torch.ones(len(tokens), device=tokens.device)
    if mode == "weighted_mean":
        weights = torch.arange(1.0, len(tokens) + 1, device=tokens.device)
    weights = weights[skip:, None]
    divisor = weights.sum().clamp(min=1e-9)
    if mode == "mean_sqrt_len":
        divisor = divisor.sqrt()
    return (counted * weights).sum(dim=0) / divisor
