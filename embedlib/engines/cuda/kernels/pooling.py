"""The pooling kernel: one vector from the hidden vectors of a sequence."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.reference_pooling import MASKED
from embedlib.models.spec import PoolingMode

BLOCK_TOKENS: Final = 32
BLOCK_COLUMNS: Final = 64
"""Columns of one program; few, so that even a single long text has many programs for the GPU."""

_MASKED = tl.constexpr(MASKED)


def pool(
    hidden: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_left_out: torch.Tensor | None,
    modes: tuple[PoolingMode, ...],
    out: torch.Tensor,
) -> None:
    """Launch `pool_kernel` once for each mode; see `reference.pool`."""
    columns = hidden.shape[1]
    for index, mode in enumerate(modes):
        pool_kernel[(out.shape[0], triton.cdiv(columns, BLOCK_COLUMNS))](
            hidden,
            cu_seqlens,
            cu_seqlens if num_left_out is None else num_left_out,
            out[:, index * columns :],
            columns,
            out.stride(0),
            MODE=mode,
            LEAVES_OUT=num_left_out is not None and mode != "last_token",
            BLOCK_TOKENS=BLOCK_TOKENS,
            BLOCK_COLUMNS=BLOCK_COLUMNS,
            num_warps=4,
            **launch_options(hidden),
        )


@triton.jit
def pool_kernel(
    hidden: tl.tensor,
    cu_seqlens: tl.tensor,
    num_left_out: tl.tensor,
    out: tl.tensor,
    columns: tl.tensor,
    out_stride: tl.tensor,
    MODE: tl.constexpr,
    LEAVES_OUT: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """Compute BLOCK_COLUMNS columns of one sequence's vector; zeros for a sequence without tokens.

    hidden: float32[T, columns]; cu_seqlens: int32[B + 1]; num_left_out: int32[B]; out:
    float32[B, columns] with rows out_stride apart.
    """
    wait_for_inputs(OVERLAPS)
    seq = tl.program_id(0)
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    is_column = column < columns
    start = tl.load(cu_seqlens + seq)
    end = tl.load(cu_seqlens + seq + 1)
    first, last = start, end
    if LEAVES_OUT:
        first = start + tl.load(num_left_out + seq)
    if MODE == "cls":
        first = tl.where(first < end, first, start)
        last = tl.minimum(end, first + 1)
    if MODE == "last_token":
        first = tl.maximum(start, end - 1)

    result = tl.zeros([BLOCK_COLUMNS], tl.float32)
    if MODE == "max":
        result += tl.where(start < end, _MASKED, 0.0)
    divisor = 0.0
    for block in range(first, last, BLOCK_TOKENS):
        token = block + tl.arange(0, BLOCK_TOKENS)
        is_token = token < last
        values = tl.load(
            hidden + token[:, None].to(tl.int64) * columns + column[None, :],
            mask=is_token[:, None] & is_column[None, :],
            other=0.0,
        )
        if MODE == "max":
            shown = tl.where(is_token[:, None], values, _MASKED)
            largest = tl.max(shown, axis=0)
            # tl.max ignores NaN; a sum does not.
            result = tl.maximum(result, largest) + 0.0 * tl.sum(values, axis=0)
        else:
            weight = tl.where(is_token, 1.0, 0.0)
            if MODE == "weighted_mean":
                weight *= (token - start + 1).to(tl.float32)
            divisor += tl.sum(weight, axis=0)
            result += tl.sum(values * weight[:, None], axis=0)
    if MODE != "max":
        divisor = tl.maximum(divisor, 1e-9)
        if MODE == "mean_sqrt_len":
            divisor = tl.sqrt(divisor)
        result = result / divisor
    tl.store(out + seq.to(tl.int64) * out_stride + column, result, mask=is_column)
