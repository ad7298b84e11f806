"""Kernels that read a whole row, compute on it and write it, with one program per row.

They are bound by memory, so each does everything that is possible while a row is in registers:
adding a layer's change, the norm, and FP8's scale, which needs the largest number of the whole row.

Shapes: rows are contiguous, [rows, columns]. `BLOCK` is the smallest power of two that is at least
columns; registers limit it to about 32,768. Inputs and outputs may be bfloat16, float16 or float32;
FP8 is only written. A row that contains NaN or infinity is written with at least one NaN, never
with finite numbers only: there is no clamping, since a number divided by its row's scale is at most
448 and rounds to it.
"""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.buffers import Buffer
from embedlib.engines.cuda.device_weights import Embeddings, NormWeight
from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.kernels.triton_math import activated, num_warps
from embedlib.models.compiled.row_scales import E4M3_MAX, SMALLEST_SCALE
from embedlib.models.spec import Activation

_E4M3_MAX = tl.constexpr(E4M3_MAX)
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


def embed(
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    token_types: torch.Tensor,
    tables: Embeddings,
    out: Buffer,
) -> None:
    """Launch `embed_kernel`; see `reference.embed`."""
    num_rows, columns = out.values.shape
    block = triton.next_power_of_2(columns)
    embed_kernel[(num_rows,)](
        token_ids,
        positions,
        token_types,
        tables.tokens,
        tables.tokens if tables.positions is None else tables.positions,
        tables.tokens if tables.token_types is None else tables.token_types,
        out.values,
        tables.scale,
        columns,
        HAS_POSITIONS=tables.positions is not None,
        HAS_TYPES=tables.token_types is not None,
        BLOCK=block,
        num_warps=num_warps(block),
        **launch_options(out.values),
    )


def norm(
    residual: torch.Tensor,
    change: torch.Tensor | None,
    change_norm: NormWeight | None,
    weight: NormWeight,
    keeps: str,
    out: Buffer | None,
) -> None:
    """Launch `norm_kernel`; see `reference.norm`."""
    num_rows, columns = residual.shape
    block = triton.next_power_of_2(columns)
    first = weight if change_norm is None else change_norm
    values, scales = _targets(out, residual)
    norm_kernel[(num_rows,)](
        residual,
        residual if change is None else change,
        first.weight,
        first.weight if first.bias is None else first.bias,
        weight.weight,
        weight.weight if weight.bias is None else weight.bias,
        values,
        scales,
        columns,
        residual.stride(0),
        weight.eps,
        HAS_CHANGE=change is not None,
        NORMS_CHANGE=change_norm is not None,
        IS_RMS=weight.is_rms,
        HAS_BIAS=weight.bias is not None,
        KEEPS=keeps,
        WRITES=out is not None,
        IS_FP8=out is not None and out.scales is not None,
        BLOCK=block,
        num_warps=num_warps(block),
        **launch_options(residual),
    )


def quantize(source: torch.Tensor, out: Buffer) -> None:
    """Launch `activate_kernel` without an activation; see `reference.quantize`."""
    activate(source, "identity", False, out)


def activate(source: torch.Tensor, activation: Activation, is_gated: bool, out: Buffer) -> None:
    """Launch `activate_kernel`; see `reference.activate`."""
    num_rows, columns = out.values.shape
    block = triton.next_power_of_2(columns)
    values, scales = _targets(out, source)
    activate_kernel[(num_rows,)](
        source,
        values,
        scales,
        columns,
        ACTIVATION=activation,
        IS_GATED=is_gated,
        IS_FP8=out.scales is not None,
        BLOCK=block,
        num_warps=num_warps(block),
        **launch_options(source),
    )


def _targets(out: Buffer | None, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensors to write values and scales to; `other` fills an unused argument."""
    if out is None:
        return other, other
    return out.values, other if out.scales is None else out.scales


@triton.jit
def embed_kernel(
    token_ids: tl.tensor,
    positions: tl.tensor,
    token_types: tl.tensor,
    token_table: tl.tensor,
    position_table: tl.tensor,
    type_table: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    columns: tl.tensor,
    HAS_POSITIONS: tl.constexpr,
    HAS_TYPES: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """Add up a token's rows of the tables; the host has already checked the ids."""
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    token = tl.load(token_ids + row).to(tl.int64)
    total = tl.load(token_table + token * columns + column, mask=mask).to(tl.float32) * scale
    if HAS_POSITIONS:
        position = tl.load(positions + row).to(tl.int64)
        total += tl.load(position_table + position * columns + column, mask=mask).to(tl.float32)
    if HAS_TYPES:
        kind = tl.load(token_types + row).to(tl.int64)
        total += tl.load(type_table + kind * columns + column, mask=mask).to(tl.float32)
    tl.store(out + row * columns + column, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def norm_kernel(
    residual: tl.tensor,
    change: tl.tensor,
    change_weight: tl.tensor,
    change_bias: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    columns: tl.tensor,
    stride: tl.tensor,
    eps: tl.tensor,
    HAS_CHANGE: tl.constexpr,
    NORMS_CHANGE: tl.constexpr,
    IS_RMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEPS: tl.constexpr,
    WRITES: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """s = residual + change, n = norm(s); see `plan.Norm`. One program per row.

    residual, change: [rows, columns], rows of residual `stride` apart; weights and biases:
    float32[columns]; out: [rows, columns]; scales: float32[rows].
    """
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    place = row * columns + column
    kept = residual + row * stride + column
    total = tl.load(kept, mask=mask, other=0.0).to(tl.float32)
    if HAS_CHANGE:
        added = tl.load(change + place, mask=mask, other=0.0).to(tl.float32)
        if NORMS_CHANGE:
            added = _normed(
                added, change_weight, change_bias, column, mask, columns, eps, IS_RMS, HAS_BIAS
            )
        total += added
    normed = _normed(total, weight, bias, column, mask, columns, eps, IS_RMS, HAS_BIAS)
    if KEEPS == "sum":
        tl.store(kept, total.to(residual.dtype.element_ty), mask=mask)
    if KEEPS == "norm":
        tl.store(kept, normed.to(residual.dtype.element_ty), mask=mask)
    if WRITES:
        _write(out + place, scales + row, normed, mask, IS_FP8)


@triton.jit
def activate_kernel(
    source: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    columns: tl.tensor,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_FP8: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """out = act(source), or act(gate) * up. One program per row.

    source: [rows, columns], or [rows, 2 * columns] with a gate in the first half; out:
    [rows, columns]; scales: float32[rows].
    """
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    first = source + row * columns * (2 if IS_GATED else 1) + column
    values = activated(tl.load(first, mask=mask, other=0.0).to(tl.float32), ACTIVATION)
    if IS_GATED:
        values *= tl.load(first + columns, mask=mask, other=0.0).to(tl.float32)
    _write(out + row * columns + column, scales + row, values, mask, IS_FP8)


@triton.jit
def _normed(
    values: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    column: tl.tensor,
    mask: tl.tensor,
    columns: tl.tensor,
    eps: tl.tensor,
    IS_RMS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
) -> tl.tensor:
    """Return the norm of a row; outside its columns the input is zero and the result undefined."""
    if not IS_RMS:
        mean = tl.sum(values, axis=0) / columns
        values = tl.where(mask, values - mean, 0.0)
    square = tl.sum(values * values, axis=0) / columns
    values = values * tl.rsqrt(square + eps) * tl.load(weight + column, mask=mask, other=0.0)
    if HAS_BIAS:
        values += tl.load(bias + column, mask=mask, other=0.0)
    return values


@triton.jit
def _write(
    out: tl.tensor, scale: tl.tensor, values: tl.tensor, mask: tl.tensor, IS_FP8: tl.constexpr
) -> None:
    """Write a row in the type of `out`; FP8 with the scale that maps its largest number to 448."""
    if IS_FP8:
        largest = tl.max(tl.where(mask, tl.abs(values), 0.0), axis=0)
        row_scale = tl.maximum(largest / _E4M3_MAX, _SMALLEST_SCALE)
        row_scale = tl.where(largest == 0.0, 1.0, row_scale)
        tl.store(scale, row_scale)
        values *= 1.0 / row_scale
    tl.store(out, values.to(out.dtype.element_ty), mask=mask)
