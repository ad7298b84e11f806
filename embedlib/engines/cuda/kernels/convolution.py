"""The kernel of a convolution over neighbouring tokens of packed sequences."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.device_weights import Convolution
from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.kernels.triton_math import num_warps


def convolve(
    source: torch.Tensor, positions: torch.Tensor, convolution: Convolution, out: torch.Tensor
) -> None:
    """Launch `convolve_kernel`; see `reference.convolve`."""
    num_rows, columns = out.shape
    block = triton.next_power_of_2(columns)
    convolve_kernel[(num_rows,)](
        source,
        positions,
        convolution.weight,
        convolution.weight if convolution.bias is None else convolution.bias,
        out,
        columns,
        HAS_BIAS=convolution.bias is not None,
        WIDTH=len(convolution.weight),
        BLOCK=block,
        num_warps=num_warps(block),
        **launch_options(source),
    )


@triton.jit
def convolve_kernel(
    source: tl.tensor,
    positions: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    columns: tl.tensor,
    HAS_BIAS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """out = c * (bias + the sum of weight * b * x over a token's neighbours). One program per row.

    source: [rows, 3 * columns], the thirds b, c and x; positions: int32[rows], of each token in its
    sequence; weight: float32[WIDTH, columns]; bias: float32[columns]; out: [rows, columns].
    """
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    place = tl.load(positions + row)
    total = tl.zeros([BLOCK], tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=mask, other=0.0)
    for index in range(WIDTH):
        offset = index - WIDTH // 2
        near = row + offset
        # A token of another sequence is never as far from its begin as it would be from this one's.
        is_row = (near >= 0) & (near < tl.num_programs(0))
        their_place = tl.load(positions + near, mask=is_row, other=-1)
        is_near = tl.where(is_row, their_place - place, -WIDTH) == offset
        is_read = tl.where(mask, is_near, False)
        at = source + near.to(tl.int64) * 3 * columns + column
        given = tl.load(at, mask=is_read, other=0.0).to(tl.float32)
        given *= tl.load(at + 2 * columns, mask=is_read, other=0.0).to(tl.float32)
        total += given * tl.load(weight + index * columns + column, mask=mask, other=0.0)
    row_at = row.to(tl.int64) * columns
    gate = tl.load(source + 3 * row_at + columns + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row_at + column, (gate * total).to(out.dtype.element_ty), mask=mask)
