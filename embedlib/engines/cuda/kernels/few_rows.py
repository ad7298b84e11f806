"""A linear layer of few rows, as single queries have: reading its weights is all that takes time.

cuBLAS and CUTLASS choose kernels for many rows. On an H100 they read the FP8 weights of a model of
7 billion numbers at 1.8 TB/s for 16 rows, this kernel at 2.5, where a copy reaches 3.0; those of
BERT-large take half the time (docs/measurements/gpu.md, few rows). For more rows, and in bfloat16
from 64 on, it is no faster.
"""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.buffers import Buffer
from embedlib.engines.cuda.capability import HOPPER
from embedlib.engines.cuda.device_weights import LinearWeight
from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.limits import MAX_FEW_ROWS

MAX_ROWS: Final = {1: MAX_FEW_ROWS, 2: 32}
"""Rows up to which it is faster, by the bytes of a number."""
MIN_BLOCK_ROWS: Final = 16
BLOCK_COLUMNS: Final = 64
"""Rows of the weights: the least that one of Hopper's matrix instructions multiplies."""
STAGES: Final = 6
"""Blocks of weights that are on their way at once; what covers the latency of memory."""
BLOCK_BYTES: Final = 256
"""Of a row of the weights that are read at once; half with the most rows, which need room, too."""


def serves_few_rows(source: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `multiply_few_rows` computes a product, and faster than a library.

    Args:
        source: [rows, inputs].
        weight: [columns, inputs].
    """
    columns, inputs = weight.shape
    # Hopper is what it was measured on.
    return (
        len(source) <= MAX_ROWS.get(weight.itemsize, 0)
        and columns % BLOCK_COLUMNS == 0
        and inputs * weight.itemsize % BLOCK_BYTES == 0
        and (not source.is_cuda or torch.cuda.get_device_capability(source.device) == HOPPER)
    )


def multiply_few_rows(source: Buffer, weight: LinearWeight, out: Buffer) -> None:
    """Launch `few_rows_kernel`; see `reference.linear`."""
    values, scales = source.values, weight.scales
    columns, inputs = weight.values.shape
    block_rows = max(MIN_BLOCK_ROWS, triton.next_power_of_2(len(values)))
    block_bytes = BLOCK_BYTES if block_rows < MAX_FEW_ROWS else BLOCK_BYTES // 2
    few_rows_kernel[(columns // BLOCK_COLUMNS,)](
        values,
        weight.values,
        values if source.scales is None else source.scales,
        values if scales is None else scales,
        values if weight.bias is None else weight.bias,
        out.values,
        len(values),
        columns,
        inputs,
        HAS_SCALES=scales is not None,
        HAS_BIAS=weight.bias is not None,
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=BLOCK_COLUMNS,
        BLOCK_INPUTS=block_bytes // values.itemsize,
        num_warps=4,
        num_stages=STAGES,
        **launch_options(values),
    )


# Whatever the number of rows, it is the same kernel: none is compiled while batches wait.
@triton.jit(do_not_specialize=["num_rows"])
def few_rows_kernel(
    source: tl.tensor,
    weight: tl.tensor,
    source_scales: tl.tensor,
    weight_scales: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    columns: tl.tensor,
    inputs: tl.tensor,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """out = source @ weight.T + bias. One program per BLOCK_COLUMNS columns of the result.

    The weights are the first factor, of which Hopper's instruction takes 64 rows at least; of the
    second one, the rows of the source, it takes any multiple of 8.

    source: [num_rows, inputs]; weight: [columns, inputs]; source_scales: float32[num_rows];
    weight_scales: float32[columns]; bias: [columns]; out: [num_rows, columns].
    """
    wait_for_inputs(OVERLAPS)
    column = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    row = tl.arange(0, BLOCK_ROWS)
    is_row = row < num_rows
    place = tl.arange(0, BLOCK_INPUTS)
    weight_at = weight + column[:, None].to(tl.int64) * inputs + place[None, :]
    source_at = source + row[:, None] * inputs + place[None, :]
    total = tl.zeros((BLOCK_COLUMNS, BLOCK_ROWS), tl.float32)
    for _ in range(0, inputs, BLOCK_INPUTS):
        weights = tl.load(weight_at)
        rows = tl.load(source_at, mask=is_row[:, None], other=0.0)
        total = tl.dot(weights, rows.T, total)
        weight_at += BLOCK_INPUTS
        source_at += BLOCK_INPUTS
    found = total.T
    if HAS_SCALES:
        found *= tl.load(source_scales + row, mask=is_row, other=0.0)[:, None]
        found *= tl.load(weight_scales + column)[None, :]
    if HAS_BIAS:
        found += tl.load(bias + column).to(tl.float32)[None, :]
    at = out + row[:, None] * columns + column[None, :]
    tl.store(at, found.to(out.dtype.element_ty), mask=is_row[:, None])
