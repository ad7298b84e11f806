"""The kernel for rotary positions, and for the norm of queries and keys before them."""

# Names of compile-time constants are in capitals, as in Triton's own kernels.
# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from embedlib.engines.cuda.device_weights import NormWeight, Rotation
from embedlib.engines.cuda.kernels.overlap import launch_options, wait_for_inputs
from embedlib.engines.cuda.kernels.triton_math import num_warps
from embedlib.engines.cuda.reference import AttentionShape


def rotate(
    values: torch.Tensor,
    positions: torch.Tensor,
    rotation: Rotation | None,
    shape: AttentionShape,
    num_query_heads: int,
    num_key_heads: int,
    query_norm: NormWeight | None,
    key_norm: NormWeight | None,
) -> None:
    """Launch `rotate_kernel`; see `reference.rotate`."""
    num_heads = num_query_heads + num_key_heads
    norm = query_norm or key_norm
    half = shape.head_dim // 2
    block_heads, block_half = triton.next_power_of_2(num_heads), triton.next_power_of_2(half)
    rotate_kernel[(values.shape[0],)](
        values,
        positions,
        values if rotation is None else rotation.cos,
        values if rotation is None else rotation.sin,
        query_norm.weight if query_norm else norm.weight if norm else values,
        key_norm.weight if key_norm else norm.weight if norm else values,
        values.stride(0),
        num_query_heads,
        num_heads,
        norm.eps if norm else 0.0,
        TURNS=rotation is not None,
        NORMS=norm is not None,
        HALF=half,
        BLOCK_HEADS=block_heads,
        BLOCK_HALF=block_half,
        num_warps=num_warps(2 * block_heads * block_half),
        **launch_options(values),
    )


@triton.jit
def rotate_kernel(
    values: tl.tensor,
    positions: tl.tensor,
    cos_table: tl.tensor,
    sin_table: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
    stride: tl.tensor,
    num_query_heads: tl.tensor,
    num_heads: tl.tensor,
    eps: tl.tensor,
    TURNS: tl.constexpr,
    NORMS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:
    """Norm and rotate the first heads of a row, in place; one program per row.

    values: [rows, stride], the first num_heads * 2 * HALF columns are heads; positions:
    int32[rows]; tables: float32[positions, HALF]; weights: float32[2 * HALF].
    """
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_HALF)[None, :]
    mask = (head < num_heads) & (pair < HALF)
    place = values + row * stride + head * (2 * HALF) + pair
    first = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMS:
        square = tl.sum(first * first + second * second, axis=1) / (2 * HALF)
        root = tl.rsqrt(square + eps)[:, None]
        weight = tl.where(head < num_query_heads, query_weight + pair, key_weight + pair)
        first *= root * tl.load(weight, mask=mask, other=0.0)
        second *= root * tl.load(weight + HALF, mask=mask, other=0.0)
    if TURNS:
        angle = tl.load(positions + row).to(tl.int64) * HALF + pair
        cos = tl.load(cos_table + angle, mask=pair < HALF, other=0.0)
        sin = tl.load(sin_table + angle, mask=pair < HALF, other=0.0)
        turned = first * cos - second * sin
        second = second * cos + first * sin
        first = turned
    tl.store(place, first.to(values.dtype.element_ty), mask=mask)
    tl.store(place + HALF, second.to(values.dtype.element_ty), mask=mask)
